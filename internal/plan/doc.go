// Package plan compares what a translated cluster should be with what is there, and defines the Plan document.
//
// The document is the only thing a reader sees: text, Markdown, HTML and JSON are renderings of it (design decision 8).
// Planning holds a client.Reader and a dry-run applier, nothing that can change a cluster.
package plan
