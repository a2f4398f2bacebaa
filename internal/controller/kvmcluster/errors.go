package kvmcluster

import (
	"errors"
	"fmt"
	"strings"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
	"github.com/giantswarm/cluster-api-provider-kvm/internal/failure"
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
	problems := failure.All(err)
	lines := make([]string, 0, len(problems))
	for _, problem := range problems {
		lines = append(lines, problem.Error())
	}
	return strings.Join(lines, "\n")
}

// wrap says what failed; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
