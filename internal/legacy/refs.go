package legacy

// Refs lists every object of the picture that a plan may rest on.
func (c *Cluster) Refs() []Ref {
	var found []object
	found = appendOne(found, c.Config)
	found = appendOne(found, c.ClusterConfig)
	found = appendOne(found, c.Flannel)
	found = appendOne(found, c.Release)
	if c.Service != nil {
		found = append(found, object{ref: c.Service.Source})
	}
	found = appendOne(found, c.Encryption)
	found = appendOne(found, c.Kubeconfig)
	found = appendAll(found, c.CertConfigs)
	for _, certificate := range c.Certificates {
		found = appendOne(found, &certificate.Secret)
	}
	found = appendAll(found, c.Deployments)
	found = appendAll(found, c.Pods)
	found = appendAll(found, c.ConfigMaps)
	refs := make([]Ref, 0, len(found))
	for _, o := range found {
		refs = append(refs, o.ref)
	}
	return refs
}

// LooksSecret tells whether a text holds key material or credentials by its form, wherever it stands.
func LooksSecret(content []byte) bool { return holdsSecret(content) }
