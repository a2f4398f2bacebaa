// Package docs holds the tests of README.md and docs/: links resolve, every finding has its section in docs/findings.md, and that
// page says what `migrate explain` prints. With -update the tests write what is generated.
package docs
