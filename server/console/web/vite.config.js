import { createHash } from 'node:crypto'
import { readdirSync, readFileSync } from 'node:fs'
import { defineConfig } from 'vite'

// console_test.go has the same list, and checks the same hash without npm.
const sources = ['index.html', 'icon.svg', 'package.json', 'package-lock.json', 'vite.config.js']

const named = {
  name: 'sources',
  generateBundle() {
    const digest = (text) => createHash('sha256').update(text).digest('hex')
    const files = [...sources, ...readdirSync('src').map((f) => 'src/' + f)].sort()
    this.emitFile({ type: 'asset', fileName: 'sources.txt', source: digest(files.map((f) => `${f} ${digest(readFileSync(f))}\n`).join('')) + '\n' })
    this.emitFile({ type: 'asset', fileName: 'icon.svg', source: readFileSync('icon.svg') })
  },
}

export default defineConfig({
  base: './',
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  plugins: [named],
  build: {
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: { output: { entryFileNames: 'app.js', assetFileNames: 'app[extname]' } },
  },
})
