package kvmcluster

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hashicorp/go-multierror"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

// NameTakenError says that an object the provider did not make has a name it needs.
type NameTakenError struct {
	Kind, Namespace, Name string
}

// Error names the object and the way out.
func (e *NameTakenError) Error() string {
	return fmt.Sprintf("%s %s/%s exists and does not belong to this KVMCluster: delete or rename it, it is left alone", e.Kind, e.Namespace, e.Name)
}

// UnusableError says that an entry of spec.endpoints cannot be kept current.
type UnusableError struct {
	Namespace, Name, Reason string
}

// Error names the entry and why.
func (e *UnusableError) Error() string {
	return fmt.Sprintf("spec.endpoints: Endpoints %s/%s cannot be kept current: %s", e.Namespace, e.Name, e.Reason)
}

// reasonOf is the condition's reason for an error.
func reasonOf(err error) string {
	var taken *NameTakenError
	var unusable *UnusableError
	switch {
	case errors.As(err, &taken):
		return infrav1.NameTakenReason
	case errors.As(err, &unusable):
		return infrav1.EndpointsUnusableReason
	default:
		return infrav1.WriteFailedReason
	}
}

// messageOf is the condition's message for an error: one problem per line.
func messageOf(err error) string {
	problems := flatten(err)
	lines := make([]string, 0, len(problems))
	for _, problem := range problems {
		lines = append(lines, problem.Error())
	}
	return strings.Join(lines, "\n")
}

// join gathers errors of parts that do not depend on each other; nil when there are none.
func join(errs ...error) error {
	var all *multierror.Error
	for _, err := range errs {
		for _, problem := range flatten(err) {
			all = multierror.Append(all, problem)
		}
	}
	if all == nil {
		return nil
	}
	if len(all.Errors) == 1 {
		return all.Errors[0]
	}
	all.ErrorFormat = func(problems []error) string {
		texts := make([]string, 0, len(problems))
		for _, problem := range problems {
			texts = append(texts, problem.Error())
		}
		return strings.Join(texts, "; ")
	}
	return all
}

// flatten takes gathered errors apart.
func flatten(err error) []error {
	var all *multierror.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &all):
		return all.Errors
	default:
		return []error{err}
	}
}

// wrap says what failed; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
