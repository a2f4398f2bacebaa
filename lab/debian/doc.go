// Package debian knows which Debian packages hold the programs that the lab and the tests run, and installs those that are missing.
package debian
