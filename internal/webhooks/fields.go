package webhooks

import (
	"fmt"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/giantswarm/cluster-api-provider-kvm/api/v1beta2"
)

const (
	// leastMemory is what a Linux with a kubelet starts in.
	leastMemory infrav1.Size = "512Mi"
	// leastDisk holds a file system with something in it.
	leastDisk infrav1.Size = "1Gi"
	// mostMemory and mostDisk catch slips such as 16Ti for 16Gi.
	mostMemory infrav1.Size = "12Ti"
	mostDisk   infrav1.Size = "64Ti"
	// defaultEtcdDisk is what the disk for etcd gets when no size is given.
	defaultEtcdDisk infrav1.Size = "10Gi"

	maxInitiatorName = 223
)

// plainName is a name that is safe as a file name: of an image, of a mount tag.
var plainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`)

// initiator are names of iSCSI nodes in their normal form (RFC 3720, 3980): letters are lower case.
var initiator = regexp.MustCompile(`^(iqn\.[0-9]{4}-(0[1-9]|1[0-2])\.[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[a-z0-9.:-]+)?|eui\.[0-9a-f]{16}|naa\.([0-9a-f]{16}|[0-9a-f]{32}))$`)

// initiatorPrefix is the beginning of such a name that a machine's name completes.
var initiatorPrefix = regexp.MustCompile(`^iqn\.[0-9]{4}-(0[1-9]|1[0-2])\.[a-z0-9]([a-z0-9.-]*[a-z0-9])?(\.|-|:[a-z0-9.:-]*)$`)

// size checks an amount against its bounds. An empty one is fine here; the schema says which are required.
func size(at *field.Path, value, least, most infrav1.Size) field.ErrorList {
	if value == "" {
		return nil
	}
	quantity, err := value.Quantity()
	if err != nil {
		return field.ErrorList{field.Invalid(at, value, "has to be an amount such as 8Gi, 8192Mi or 8GB")}
	}
	low, high := must(least), must(most)
	if quantity.Cmp(low) < 0 {
		return field.ErrorList{field.Invalid(at, value, fmt.Sprintf("is too small: at least %s", least))}
	}
	if quantity.Cmp(high) > 0 {
		return field.ErrorList{field.Invalid(at, value, fmt.Sprintf("is too large: at most %s", most))}
	}
	return nil
}

// must parses one of our own constants.
func must(s infrav1.Size) resource.Quantity {
	quantity, err := s.Quantity()
	if err != nil {
		return resource.Quantity{}
	}
	return quantity
}

// imageName checks the name of a base image: it becomes part of a path.
func imageName(at *field.Path, value string) field.ErrorList {
	if plainName.MatchString(value) && !strings.Contains(value, "..") {
		return nil
	}
	return field.ErrorList{field.Invalid(at, value, "has to be the name of an image of this installation: letters, digits, '.', '_' and '-', for example debian-12-kubernetes-1.36")}
}

// directory checks a directory on hosts.
func directory(at *field.Path, value string) field.ErrorList {
	clean := path.Clean(value)
	switch {
	case !strings.HasPrefix(value, "/"):
		return field.ErrorList{field.Invalid(at, value, "has to be an absolute path, for example /var/lib/data")}
	case slices.Contains(strings.Split(value, "/"), ".."):
		return field.ErrorList{field.Invalid(at, value, "must not contain '..'")}
	case clean == "/":
		return field.ErrorList{field.Invalid(at, value, "must not be the root directory of the host")}
	case strings.ContainsAny(value, "\x00\n\r"):
		return field.ErrorList{field.Invalid(at, value, "must not contain control characters")}
	}
	for _, system := range []string{"/proc", "/sys", "/dev"} {
		if clean == system || strings.HasPrefix(clean, system+"/") {
			return field.ErrorList{field.Invalid(at, value, "must not be in "+system+": it holds no files")}
		}
	}
	return nil
}

// dnsName checks a name of a host or domain.
func dnsName(at *field.Path, value string) field.ErrorList {
	if problems := validation.IsDNS1123Subdomain(value); len(problems) > 0 {
		return field.ErrorList{field.Invalid(at, value, "is no DNS name: lower-case letters, digits, '-' and '.', for example node.example.com")}
	}
	return nil
}

// address checks an IP address that can be talked to.
func address(at *field.Path, value string) field.ErrorList {
	ip, err := netip.ParseAddr(value)
	if err != nil || ip.Zone() != "" {
		return field.ErrorList{field.Invalid(at, value, "is no IP address, for example 10.0.0.2 or fd00::2")}
	}
	if ip.IsUnspecified() || ip.IsMulticast() {
		return field.ErrorList{field.Invalid(at, value, "is no address of a host")}
	}
	return nil
}

// host checks a name or an address.
func host(at *field.Path, value string) field.ErrorList {
	if _, err := netip.ParseAddr(value); err == nil {
		return address(at, value)
	}
	// What looks like an address and is none would pass as a name.
	if strings.Trim(value, "0123456789.") == "" || len(validation.IsDNS1123Subdomain(value)) > 0 {
		return field.ErrorList{field.Invalid(at, value, "is neither a DNS name nor an IP address, for example ntp.example.com or 10.0.0.2")}
	}
	return nil
}

// each checks all values of a list and that none repeats.
func each(at *field.Path, values []string, check func(*field.Path, string) field.ErrorList) field.ErrorList {
	var problems field.ErrorList
	seen := map[string]bool{}
	for i, value := range values {
		problems = append(problems, check(at.Index(i), value)...)
		if seen[value] {
			problems = append(problems, field.Duplicate(at.Index(i), value))
		}
		seen[value] = true
	}
	return problems
}

// hostVolumes checks that every volume has a place of its own.
func hostVolumes(at *field.Path, volumes []infrav1.HostVolume) field.ErrorList {
	var problems field.ErrorList
	tags, places := map[string]bool{}, map[string]bool{}
	for i, v := range volumes {
		here := at.Index(i)
		if !plainName.MatchString(v.MountTag) || strings.Contains(v.MountTag, "..") {
			problems = append(problems, field.Invalid(here.Child("mountTag"), v.MountTag, "becomes the directory /data/<mountTag>: letters, digits, '.', '_' and '-'"))
		}
		if tags[v.MountTag] {
			problems = append(problems, field.Duplicate(here.Child("mountTag"), v.MountTag))
		}
		tags[v.MountTag] = true

		place, where := "path "+path.Clean(v.HostPath), here.Child("hostPath")
		value := v.HostPath
		switch {
		case v.HostPath != "":
			problems = append(problems, directory(where, v.HostPath)...)
		case v.ClaimName != "":
			place, where, value = "claim "+v.ClaimName, here.Child("claimName"), v.ClaimName
			problems = append(problems, dnsName(where, v.ClaimName)...)
		default:
			continue // The schema wants one of them.
		}
		if places[place] {
			problems = append(problems, field.Duplicate(where, value))
		}
		places[place] = true
	}
	return problems
}

// etcdVolume checks where etcd's data live.
func etcdVolume(at *field.Path, v *infrav1.EtcdVolume) field.ErrorList {
	if v == nil {
		return nil
	}
	problems := size(at.Child("size"), v.Size, leastDisk, mostDisk)
	if v.HostPath != "" {
		problems = append(problems, directory(at.Child("hostPath"), v.HostPath)...)
	}
	if v.ClaimTemplate == nil {
		return problems
	}
	claim := at.Child("claimTemplate")
	if len(v.ClaimTemplate.AccessModes) == 0 {
		problems = append(problems, field.Required(claim.Child("accessModes"), "for example ReadWriteOnce"))
	}
	storage := claim.Child("resources", "requests").Key("storage")
	request, ok := v.ClaimTemplate.Resources.Requests[corev1.ResourceStorage]
	if !ok {
		return append(problems, field.Required(storage, "for example 15Gi"))
	}
	wanted := v.Size
	if wanted == "" {
		wanted = defaultEtcdDisk
	}
	if quantity, err := wanted.Quantity(); err == nil && quantity.Cmp(request) > 0 {
		problems = append(problems, field.Invalid(storage, request.String(), fmt.Sprintf("is too small for the disk of %s that is made in it (%s)", wanted, at.Child("size"))))
	}
	return problems
}

// iscsi checks names for storage arrays; machine completes a prefix and is empty in templates.
func iscsi(at *field.Path, i *infrav1.ISCSI, machine string) field.ErrorList {
	const rule = "letters are lower case, for example iqn.2016-04.com.example:node-1"
	switch {
	case i == nil:
		return nil
	case i.InitiatorName != "" && !initiator.MatchString(i.InitiatorName):
		return field.ErrorList{field.Invalid(at.Child("initiatorName"), i.InitiatorName, "is no iSCSI initiator name: "+rule)}
	case i.InitiatorNamePrefix != "" && !initiatorPrefix.MatchString(i.InitiatorNamePrefix):
		return field.ErrorList{field.Invalid(at.Child("initiatorNamePrefix"), i.InitiatorNamePrefix,
			"is no beginning of an iSCSI initiator name: it ends in ':', '.' or '-' or has a part after ':', "+rule)}
	case i.InitiatorNamePrefix != "" && len(i.InitiatorNamePrefix)+len(machine) > maxInitiatorName:
		return field.ErrorList{field.Invalid(at.Child("initiatorNamePrefix"), i.InitiatorNamePrefix,
			fmt.Sprintf("makes an initiator name of more than %d characters with the machine's name", maxInitiatorName))}
	}
	return nil
}

// nodeSelector checks labels of nodes.
func nodeSelector(at *field.Path, selector map[string]string) field.ErrorList {
	var problems field.ErrorList
	for _, key := range sortedKeys(selector) {
		problems = append(problems, labelKey(at.Key(key), key)...)
		for range validation.IsValidLabelValue(selector[key]) {
			problems = append(problems, field.Invalid(at.Key(key), selector[key], "is no label value: at most 63 letters, digits, '-', '_' and '.'"))
			break
		}
	}
	return problems
}

func labelKey(at *field.Path, key string) field.ErrorList {
	if len(metav1validation.ValidateLabelName(key, at)) > 0 {
		return field.ErrorList{field.Invalid(at, key, "is no label name, for example topology.kubernetes.io/zone")}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
