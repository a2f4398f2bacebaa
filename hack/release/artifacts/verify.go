package artifacts

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// ProviderLabel is on every object of the provider, and says whose it is.
const (
	ProviderLabel = "cluster.x-k8s.io/provider"
	Provider      = "infrastructure-kvm"
	// Contract is the version of Cluster API's contract that the provider implements.
	Contract = "v1beta2"
)

// Variables are those a cluster template may use: the contract's own, then what this provider adds.
func Variables() []string {
	return []string{
		"CLUSTER_NAME", "NAMESPACE", "KUBERNETES_VERSION", "CONTROL_PLANE_MACHINE_COUNT", "WORKER_MACHINE_COUNT",
		"CONTROL_PLANE_MACHINE_CPUS", "WORKER_MACHINE_CPUS", "CONTROL_PLANE_MACHINE_MEMORY", "WORKER_MACHINE_MEMORY",
		"CONTROL_PLANE_DOCKER_VOLUME_SIZE_GB", "CONTROL_PLANE_VOLUME_SIZE_GB", "DOCKER_VOLUME_SIZE_GB", "VOLUME_SIZE_GB",
		"POD_IP_RANGE", "SERVICE_IP_RANGE",
	}
}

// Problem is one thing about one file that clusterctl, or its user, could not work with.
type Problem struct {
	File, Message string
}

// Error implements error.
func (p *Problem) Error() string { return p.File + ": " + p.Message }

// Verify returns all problems of a release, joined.
func Verify(files Files, version string) error {
	v := &verifier{}
	v.metadata(files[MetadataFile], version)
	v.components(files[ComponentsFile], version)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasPrefix(name, "cluster") {
			v.template(name, files[name])
		}
	}
	if _, ok := files["cluster-template.yaml"]; !ok {
		v.say("cluster-template.yaml", "the default template is missing")
	}
	return errors.Join(v.problems...)
}

type verifier struct {
	problems []error
}

func (v *verifier) say(file, format string, args ...any) {
	v.problems = append(v.problems, &Problem{File: file, Message: fmt.Sprintf(format, args...)})
}

// metadata has to know the release's series, or clusterctl cannot tell the contract of this version.
func (v *verifier) metadata(raw []byte, version string) {
	var m struct {
		APIVersion    string `json:"apiVersion"`
		Kind          string `json:"kind"`
		ReleaseSeries []struct {
			Major, Minor int
			Contract     string
		} `json:"releaseSeries"`
	}
	if err := yaml.UnmarshalStrict(raw, &m); err != nil {
		v.say(MetadataFile, "%v", err)
		return
	}
	if m.APIVersion != "clusterctl.cluster.x-k8s.io/v1alpha3" || m.Kind != "Metadata" {
		v.say(MetadataFile, "is a %s of %s, want a Metadata of clusterctl.cluster.x-k8s.io/v1alpha3", m.Kind, m.APIVersion)
	}
	for _, s := range m.ReleaseSeries {
		if strings.HasPrefix(version, fmt.Sprintf("v%d.%d.", s.Major, s.Minor)) {
			if s.Contract != Contract {
				v.say(MetadataFile, "series %d.%d has contract %s, want %s", s.Major, s.Minor, s.Contract, Contract)
			}
			return
		}
	}
	v.say(MetadataFile, "no release series for %s: add one", version)
}

var (
	variable     = regexp.MustCompile(`\$\{`)
	placeholders = regexp.MustCompile(`\b(CERTIFICATE_NAMESPACE|CERTIFICATE_NAME|SERVICE_NAMESPACE|SERVICE_NAME)\b`)
)

// components follow clusterctl's contract: one Namespace, a container "manager", the provider's label on everything. The RFC wants no
// variables in them.
func (v *verifier) components(raw []byte, version string) {
	objects, err := decode(raw)
	if err != nil {
		v.say(ComponentsFile, "%v", err)
		return
	}
	if variable.Match(raw) {
		v.say(ComponentsFile, "has variables, and no user can be asked for their values")
	}
	if found := placeholders.Find(raw); found != nil {
		v.say(ComponentsFile, "still contains the placeholder %s", found)
	}
	var namespaces []string
	managers := 0
	for _, o := range objects {
		switch o.GetKind() {
		case "Namespace":
			namespaces = append(namespaces, o.GetName())
		case "Deployment":
			managers += v.deployment(o, version)
		case "CustomResourceDefinition":
			v.crd(o)
		}
		if o.GetLabels()[ProviderLabel] != Provider {
			v.say(ComponentsFile, "%s has no label %s=%s", describe(o), ProviderLabel, Provider)
		}
	}
	if len(namespaces) != 1 {
		v.say(ComponentsFile, "has %d Namespaces %v, want one", len(namespaces), namespaces)
	}
	if managers != 1 {
		v.say(ComponentsFile, "has %d containers called manager, want one", managers)
	}
	for _, o := range objects {
		if ns := o.GetNamespace(); ns != "" && !slices.Contains(namespaces, ns) {
			v.say(ComponentsFile, "%s is not in the provider's namespace", describe(o))
		}
	}
}

// deployment returns how many of its containers are managers.
func (v *verifier) deployment(o *unstructured.Unstructured, version string) int {
	containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
	if err != nil {
		v.say(ComponentsFile, "%s: %v", describe(o), err)
	}
	managers := 0
	for _, c := range containers {
		container, ok := c.(map[string]any)
		if !ok {
			continue
		}
		if container["name"] == "manager" {
			managers++
		}
		if image := fmt.Sprint(container["image"]); !strings.HasSuffix(image, ":"+version) {
			v.say(ComponentsFile, "%s runs image %s, want one of version %s", describe(o), image, version)
		}
	}
	return managers
}

// crd has to carry the label by which Cluster API finds the version of a contract.
func (v *verifier) crd(o *unstructured.Unstructured) {
	if o.GetLabels()["cluster.x-k8s.io/"+Contract] == "" {
		v.say(ComponentsFile, "%s has no label cluster.x-k8s.io/%s, so Cluster API will not find its objects", describe(o), Contract)
	}
}

var reference = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)`)

// template may use known variables only: a user reads them in the documentation.
func (v *verifier) template(name string, raw []byte) {
	if _, err := decode(raw); err != nil {
		// Values are numbers or within quotes, so a template is YAML before it is filled in, too.
		v.say(name, "%v", err)
	}
	for _, match := range reference.FindAllSubmatch(raw, -1) {
		if used := string(match[1]); !slices.Contains(Variables(), used) {
			v.say(name, "uses variable %s, which is not among those of the documentation", used)
		}
	}
}

func decode(raw []byte) ([]*unstructured.Unstructured, error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw)))
	var objects []*unstructured.Unstructured
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("splitting YAML documents: %w", err)
		}
		content := map[string]any{}
		if err := yaml.Unmarshal(doc, &content); err != nil {
			return nil, fmt.Errorf("parsing YAML: %w", err)
		}
		if len(content) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: content})
		}
	}
}

func describe(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
}
