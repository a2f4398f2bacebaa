// Package certtest changes certificates that tests have, as time would.
package certtest
