module github.com/tenurehq/tenure/tools/texts

go 1.26
