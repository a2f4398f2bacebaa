package adopt

import (
	"errors"
	"strings"
)

// ErrReplaced means that an object is not the one that was planned with: going on would touch something nobody looked at.
var ErrReplaced = errors.New("an object was replaced since it was looked at")

// ErrForeign means that an object carries something of somebody else where the migration would write.
var ErrForeign = errors.New("somebody else's value is in the way")

// ForeignWriteError tells of writes by others while everybody was supposed to be silent.
type ForeignWriteError struct {
	Writes []ForeignWrite
}

// ForeignWrite is one of them.
type ForeignWrite struct {
	// Object is Kind/namespace/name.
	Object string
	// What happened: changed, deleted or created.
	What string
	// Fields that differ, for example metadata.annotations; empty for created and deleted.
	Fields []string
	// By is the manager that wrote last, as the API server recorded it; empty when it does not say.
	By string
}

// kubernetesItself is the manager under which the Deployment, ReplicaSet and Endpoints controllers write.
const kubernetesItself = "kube-controller-manager"

// original tells that a write is somebody's own will, not what Kubernetes made of another write: the Deployment controller, for one, copies
// each annotation of a Deployment to its ReplicaSet.
func (w ForeignWrite) original() bool { return w.By != kubernetesItself }

func (e *ForeignWriteError) Error() string {
	lines := make([]string, 0, len(e.Writes))
	for _, w := range e.Writes {
		line := w.Object + " was " + w.What
		if len(w.Fields) > 0 {
			line += " (" + strings.Join(w.Fields, ", ") + ")"
		}
		if w.By != "" {
			line += " by " + w.By
		}
		lines = append(lines, line)
	}
	return "somebody else still writes to this cluster: " + strings.Join(lines, "; ")
}
