package legacy

// Refs lists every object of the picture that a plan may rest on.
func (c *Cluster) Refs() []Ref {
	var refs []Ref
	add := func(ref Ref) { refs = append(refs, ref) }
	if c.Config != nil {
		add(c.Config.Ref)
	}
	if c.ClusterConfig != nil {
		add(c.ClusterConfig.Ref)
	}
	if c.Flannel != nil {
		add(c.Flannel.Ref)
	}
	if c.Release != nil {
		add(c.Release.Ref)
	}
	if c.Service != nil {
		add(c.Service.Source)
	}
	if c.Encryption != nil {
		add(c.Encryption.Ref)
	}
	if c.Kubeconfig != nil {
		add(c.Kubeconfig.Ref)
	}
	for i := range c.CertConfigs {
		add(c.CertConfigs[i].Ref)
	}
	for _, certificate := range c.Certificates {
		add(certificate.Secret.Ref)
	}
	for i := range c.Deployments {
		add(c.Deployments[i].Ref)
	}
	for i := range c.Pods {
		add(c.Pods[i].Ref)
	}
	for i := range c.ConfigMaps {
		add(c.ConfigMaps[i].Ref)
	}
	return refs
}

// LooksSecret tells whether a text holds key material or credentials by its form, wherever it stands.
func LooksSecret(content []byte) bool { return holdsSecret(content) }

// DecodeYAML decodes one document with the rules of sigs.k8s.io/yaml, without its detour over JSON text. Translation takes the
// configuration files of nodes apart with it.
func DecodeYAML(content []byte) (any, error) {
	return decodeYAML(yamlDocument{text: content, line: 1}, int64(len(content))*decodeGrowth, func(int, string) {})
}

// decodeGrowth bounds what aliases may make of a document, as a multiple of its length.
const decodeGrowth = 64
