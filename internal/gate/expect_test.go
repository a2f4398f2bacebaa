package gate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAnAnswerIsReadAsTheExpressionSays(t *testing.T) {
	t.Parallel()
	const alerts = `{"alerts": [{"severity": "page", "token": "s3cr3t"}]}`
	for name, c := range map[string]struct{ expect, body, want string }{
		"holds":         {`body.ok`, `{"ok": true}`, ""},
		"does not":      {`body.ok`, `{"ok": false}`, "it does not hold that body.ok"},
		"number":        {`body.rate < 0.01 && body.replicas >= 3`, `{"rate": 0.001, "replicas": 3}`, ""},
		"whole number":  {`body.firing == 0`, `{"firing": 0}`, ""},
		"text":          {`body.status == "green"`, `{"status": "red"}`, `it does not hold that body.status == "green"`},
		"list":          {`body.alerts.all(a, a.severity != "page")`, alerts, "it does not hold that"},
		"empty list":    {`body.alerts.all(a, a.severity != "page")`, `{"alerts": []}`, ""},
		"missing":       {`body.ok`, `{}`, "nobody can tell whether body.ok: the answer has no key ok"},
		"may miss":      {`!has(body.freeze)`, `{}`, ""},
		"other type":    {`body.ok`, `{"ok": "s3cr3t"}`, "body.ok is a string; it must be true or false"},
		"null":          {`body.ok`, `null`, "nobody can tell whether body.ok"},
		"no JSON":       {`body.ok`, `s3cr3t`, "its answer is no JSON, which is needed to know whether body.ok"},
		"cut off":       {`body.ok`, `{"ok": tr`, "its answer is no JSON"},
		"no conversion": {`timestamp(body.at) > timestamp("2026-01-01T00:00:00Z")`, `{"at": "s3cr3t"}`, "of other kinds than it needs"},
		"no such key":   {`body.names[body.token]`, `{"names": {}, "token": "s3cr3t"}`, "of other kinds than it needs"},
		"costly":        {`body.all(a, body.all(b, body.all(c, true)))`, "[" + strings.Repeat("1,", 999) + "1]", "the answer is too long for it"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name == "costly" {
				t.Skip("a million steps of a language without goroutines")
			}
			e, err := ParseExpectation(c.expect)
			require.NoError(t, err)
			err = e.judge([]byte(c.body))
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			assert.NotContains(t, err.Error(), "s3cr3t")
		})
	}
	assert.NoError(t, Expectation{}.judge([]byte("anything")))
}

func TestMistakesInAnExpressionAreFoundBeforeAnythingIsAsked(t *testing.T) {
	t.Parallel()
	for expect, want := range map[string]string{
		`body.ok &&`:                       "column 11: Syntax error",
		`answer.ok`:                        "column 1: undeclared reference to 'answer'",
		`"text"`:                           "it is a string; it must be true or false",
		strings.Repeat("(", 1000):          "",
		strings.Repeat("!", 4097) + "true": "it is longer than 4096 characters",
	} {
		if testing.Short() && len(expect) == 1000 {
			continue // a parser without goroutines, which looks far ahead
		}
		_, err := ParseExpectation(expect)
		require.ErrorContains(t, err, want, "%.20s", expect)
	}
}

func TestALongAnswerShutsTheGateThatHasToReadIt(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`"` + strings.Repeat("x", mostBody) + `"`)) // nobody has to read it to its end
	}))
	t.Cleanup(server.Close)
	expect, err := ParseExpectation("body.size() > 0")
	require.NoError(t, err)
	a := &Asker{Client: Client(server.Client().Transport)}
	g := Gate{Before: []string{Node}, URL: server.URL, Status: http.StatusOK, Timeout: time.Minute, Expect: expect}
	refused := a.Ask(t.Context(), []Gate{g}, Node)
	require.NotNil(t, refused)
	assert.Contains(t, refused.Why, "answers with more than 1048576 bytes")

	g.Expect = Expectation{}
	assert.Nil(t, a.Ask(t.Context(), []Gate{g}, Node), "nobody wants to know what it says")
}

// FuzzExpectation reads arbitrary expressions and answers.
func FuzzExpectation(f *testing.F) {
	f.Add("body.ok", `{"ok": true}`)
	f.Add(`body.alerts.all(a, a.severity != "page")`, `{"alerts": [{"severity": "page"}]}`)
	f.Add("body[0] / 0 == 1", "[1]")
	f.Fuzz(func(t *testing.T, text, body string) {
		e, err := ParseExpectation(text)
		if err != nil {
			return
		}
		if err := e.judge([]byte(body)); err != nil {
			assert.NotEmpty(t, err.Error())
		}
	})
}
