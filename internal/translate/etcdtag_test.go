package translate

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheNewMemberIsNotOlderThanTheRunningOne(t *testing.T) {
	t.Parallel()
	for running, want := range map[string]string{
		"3.4.3": "3.4.13-0", "3.4.13": "3.4.13-0", "3.5.0": "3.5.0-0", "3.5.2": "3.5.3-0", "3.5.9": "3.5.9-0", "3.5.11": "3.5.12-0", "3.5.17": "3.5.21-0",
		"3.4.27": "3.4.13-0", "3.5.99": "3.5.24-0", // There is none that is not older.
		"3.3.10": "", "3.6.4": "", "v3.5.0": "", "3.5": "", "latest": "",
	} {
		assert.Equal(t, want, etcdTag(running), running)
	}
}
