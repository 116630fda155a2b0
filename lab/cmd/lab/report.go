package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/report"
	"github.com/tenurehq/tenure/server/cli"
)

func newReport() *cobra.Command {
	var results, docs string
	var out output
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Print the results of experiments, or write them into docs",
		Long: `Print the results in --results, thresholds first, then tables. Exit code 99: a bar was
not met, or there is no result.

With --out DOCS record the results in DOCS/lab, as small JSON files with figures, and
make DOCS/findings.md from all records there and from the comments in
DOCS/lab/findings.tmpl. A quick result never replaces a full one. Without results the
page is made again from the records.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			all, err := experiment.Results(results, catalogue.All())
			if err != nil {
				return err
			}
			if docs != "" {
				if err := writeFindings(cmd, docs, all); err != nil || len(all) == 0 {
					return err
				}
				return verdictOf(all, nil)
			}
			if err := out.write(cmd.OutOrStdout(), all, func(w io.Writer) (err error) {
				for _, r := range all {
					r.Kept = true
					err = errors.Join(err, r.Print(w))
				}
				return err
			}); err != nil {
				return err
			}
			return verdictOf(all, nil)
		},
	}
	f := cmd.Flags()
	f.StringVar(&results, "results", resultsDir(), "folder of the results")
	f.StringVar(&docs, "out", "", "the docs folder: write findings.md there")
	out.flag(f)
	return cmd
}

func writeFindings(cmd *cobra.Command, docs string, results []experiment.Result) error {
	kept, err := report.Keep(docs, results)
	for _, k := range kept {
		cli.Say(cmd, "recorded: %s", k)
	}
	if err != nil {
		return err
	}
	text, missing, err := report.Findings(docs)
	if err != nil {
		return err
	}
	for _, m := range missing {
		cli.Say(cmd, "the comments name a number that is not recorded: %s", m)
	}
	path := filepath.Join(docs, "findings.md")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return err
	}
	cli.Say(cmd, "written: %s", path)
	return nil
}
