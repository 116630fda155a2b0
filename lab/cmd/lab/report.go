package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/catalogue"
	"github.com/tenurehq/tenure/lab/experiment"
	"github.com/tenurehq/tenure/lab/report"
	"github.com/tenurehq/tenure/server/cli"
)

func newReport() *cobra.Command {
	var results, out string
	var form output
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Say again what the experiments that were run have shown, or write it into docs",
		Long: `Print the results that are kept in --results, thresholds first, then tables. Exit code
99: a threshold was not met, or there is no result.

With --out DOCS keep what they have shown in DOCS/lab, as small files of JSON with
pictures, and make DOCS/findings.md from all that is kept there and the comments in
DOCS/lab/findings.tmpl. A quick result never takes the place of a full one. Without
results the text is made again from what is kept.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := form.json()
			if err != nil {
				return err
			}
			all, err := experiment.Results(results, catalogue.All())
			switch {
			case err != nil:
				return cli.Exit(exitFailure, err)
			case out != "":
				return writeFindings(cmd, out, all)
			case asJSON:
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(all)
			default:
				for _, r := range all {
					r.Kept = true
					err = errors.Join(err, r.Print(cmd.OutOrStdout()))
				}
			}
			if err != nil {
				return cli.Exit(exitFailure, err)
			}
			return verdictOf(all, nil)
		},
	}
	f := cmd.Flags()
	f.StringVar(&results, "results", resultsDir(), "folder of the results")
	f.StringVar(&out, "out", "", "the folder docs: write findings.md there")
	form.flag(f)
	return cmd
}

func writeFindings(cmd *cobra.Command, docs string, results []experiment.Result) error {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
	kept, err := report.Keep(docs, results)
	for _, k := range kept {
		say("kept: %s", k)
	}
	if err != nil {
		return cli.Exit(exitFailure, err)
	}
	text, missing, err := report.Findings(docs)
	if err != nil {
		return cli.Exit(exitFailure, err)
	}
	for _, m := range missing {
		say("the comments name a number that is not there: %s", m)
	}
	path := filepath.Join(docs, "findings.md")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		return cli.Exit(exitFailure, err)
	}
	say("written: %s", path)
	if len(results) == 0 {
		return nil
	}
	return verdictOf(results, nil)
}
