package process

// LoseGuard starts a guard for a process and leaves it, like a process that died.
func LoseGuard(pid int, armed bool) (wait func() error, err error) {
	g, err := NewGuard(pid, armed)
	if err != nil {
		return nil, err
	}
	return g.cmd.Wait, g.stdin.Close()
}
