package history

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestWhatARunNoticedBeforeItWaitedIsNotForgotten: a run of several nights moved pods in each of them.
func TestWhatARunNoticedBeforeItWaitedIsNotForgotten(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 21, 0, 0, 0, time.UTC)
	failed := at.Add(time.Hour)
	first := &Impact{
		From: at, Until: at.Add(2 * time.Hour), Every: "1s", Unwatched: "the watch ended",
		Answers: []Answers{{Name: "api", Asked: 100, Failed: 1, Gap: "9s", FirstFailure: &failed, LastFailure: &failed, Error: "refused"}},
		Namespaces: []Affected{
			{Name: "web", Moved: 2, Workloads: []Shortage{{Kind: "Deployment", Name: "front", Fewer: "59.5s", None: "3s"}}},
		},
	}
	second := &Impact{
		From: at.Add(24 * time.Hour), Until: at.Add(25 * time.Hour), Every: "1s", Unwatched: "the watch ended",
		Answers: []Answers{{Name: "api", Asked: 50, Gap: "10s"}, {Name: "shop", Asked: 50}},
		Namespaces: []Affected{
			{Name: "data", Moved: 1},
			{Name: "web", Moved: 1, Workloads: []Shortage{{Kind: "Deployment", Name: "back", Fewer: "1s"}, {Kind: "Deployment", Name: "front", Fewer: "1s", Already: true}}},
		},
	}
	assert.Equal(t, &Impact{
		From: at, Until: at.Add(25 * time.Hour), Every: "1s", Unwatched: "the watch ended",
		Answers: []Answers{
			{Name: "api", Asked: 150, Failed: 1, Gap: "10s", FirstFailure: &failed, LastFailure: &failed, Error: "refused"}, {Name: "shop", Asked: 50},
		},
		Namespaces: []Affected{
			{Name: "data", Moved: 1},
			{Name: "web", Moved: 3, Workloads: []Shortage{{Kind: "Deployment", Name: "back", Fewer: "1s"}, {Kind: "Deployment", Name: "front", Fewer: "1m0.5s", None: "3s", Already: true}}},
		},
	}, first.Then(second))
	assert.Equal(t, 2, first.Namespaces[0].Moved, "what was told before stays")
	var none *Impact
	assert.Equal(t, first, none.Then(first))
	assert.Equal(t, first, first.Then(nil))
	assert.Nil(t, none.Then(nil))
}
