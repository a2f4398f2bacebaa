package gate

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/interpreter"
)

// Expectation is a condition on an address's answer, in the Common Expression Language (https://cel.dev), as Kubernetes writes conditions. It knows body, the JSON of
// the answer. The zero value expects nothing.
type Expectation struct {
	text    string
	program cel.Program
}

const (
	// mostCost bounds an evaluation: some ten milliseconds. A condition on an answer costs a few units; only nested loops over a large one come near it.
	mostCost = 1_000_000
	// mostExpression is longer than anybody writes, in characters.
	mostExpression = 4096
)

// ParseExpectation reads an expression and finds mistakes in it before anything is asked: syntax, unknown names, and a value that cannot be true or false.
func ParseExpectation(text string) (Expectation, error) {
	if len(text) > mostExpression {
		return Expectation{}, fmt.Errorf("it is longer than %d characters", mostExpression)
	}
	env, err := cel.NewEnv(cel.Variable("body", cel.DynType), cel.CrossTypeNumericComparisons(true))
	if err != nil {
		return Expectation{}, fmt.Errorf("preparing expressions: %w", err)
	}
	ast, issues := env.Compile(text)
	if issues != nil && issues.Err() != nil {
		first := issues.Errors()[0]
		return Expectation{}, fmt.Errorf("column %d: %s", first.Location.Column()+1, first.Message)
	}
	if out := ast.OutputType(); !out.IsExactType(cel.BoolType) && !out.IsExactType(cel.DynType) {
		return Expectation{}, fmt.Errorf("it is a %s; it must be true or false", out)
	}
	program, err := env.Program(ast, cel.CostLimit(mostCost))
	if err != nil {
		return Expectation{}, fmt.Errorf("it cannot be worked out: %w", err)
	}
	return Expectation{text, program}, nil
}

// any says whether anything is expected.
func (e Expectation) any() bool { return e.program != nil }

// judge says why an answer is not as expected. What the answer holds is not repeated: nobody knows what is in it.
func (e Expectation) judge(body []byte) error {
	if !e.any() {
		return nil
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return fmt.Errorf("its answer is no JSON, which is needed to know whether %s", e.text)
	}
	result, _, err := e.program.Eval(map[string]any{"body": value})
	if err != nil {
		return fmt.Errorf("nobody can tell whether %s: %s", e.text, e.obstacle(err))
	}
	switch holds, known := result.Value().(bool); {
	case !known:
		return fmt.Errorf("%s is a %s; it must be true or false", e.text, result.Type().TypeName())
	case !holds:
		return fmt.Errorf("it does not hold that %s", e.text)
	}
	return nil
}

// obstacle is what kept an expression from being worked out. The language's own messages repeat values, so only a key that the expression names itself is taken from them.
func (e Expectation) obstacle(err error) string {
	var ended interpreter.EvalCancelledError
	if errors.As(err, &ended) && ended.Cause == interpreter.CostLimitExceeded {
		return "the answer is too long for it"
	}
	if key, missing := strings.CutPrefix(err.Error(), "no such key: "); missing && strings.Contains(e.text, key) {
		return "the answer has no key " + key
	}
	return "the answer's values are of other kinds than it needs"
}
