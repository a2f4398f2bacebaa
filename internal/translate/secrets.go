package translate

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/legacy"
)

// secrets makes the Secrets that Cluster API looks for by name. All exist before the control plane does: whatever is missing then
// would be generated, and would not be the customer's.
func (t *translation) secrets() {
	t.certificateAuthority()
	t.serviceAccount()
	t.frontProxy()
	t.kubeconfig()
	t.encryption()
}

// certificateAuthority makes <id>-ca and <id>-etcd from the one CA of the cluster.
func (t *translation) certificateAuthority() {
	leaves := make([]*leaf, 0, len(t.cluster.Certificates))
	for _, component := range sortedKeys(t.cluster.Certificates) {
		leaves = append(leaves, t.get(sourceSecret+"/"+component, "data.ca"))
	}
	if l := t.get(sourceSecret+"/api", "data.ca"); l == nil && t.opts.CACert == nil {
		t.find(idSecret, nil, "no certificate Secret of component api holds the cluster's CA certificate", "restore Secret default/"+t.id+"-api, or give the CA with --ca-cert and --ca-key")
		return
	}
	certificate := t.opts.CACert
	if certificate == nil {
		certificate = []byte(t.get(sourceSecret+"/api", "data.ca").text())
	}
	for _, suffix := range []string{"ca", "etcd"} {
		o := t.secretObject(suffix, PhaseTranslate)
		data(o, "tls.crt", withNewline(certificate), t.from("ca", leaves...))
		if t.opts.CAKey != nil {
			data(o, "tls.key", withNewline(t.opts.CAKey), t.from("ca-key"))
		}
		o.Note = "the CA key is given by the operator; it is exposed to everybody who may read Secrets in this namespace"
		t.add(o)
	}
}

// withNewline ends PEM data with a newline: cert-operator's have none, and tools that concatenate PEM files need one.
func withNewline(text []byte) []byte {
	if len(text) > 0 && text[len(text)-1] != '\n' {
		return append(append([]byte{}, text...), '\n')
	}
	return text
}

// serviceAccount makes <id>-sa: the legacy private key, and its public key, which Cluster API wants as bare PEM and not as the
// certificate that the legacy Secret holds (legacy-system.md 8.5).
func (t *translation) serviceAccount() {
	l := t.get(sourceSecret+"/service-account", "data.key")
	if l == nil {
		t.find(idSecret, nil, "there is no service-account key: Secret default/"+t.id+"-service-account is missing", "restore it; tokens signed by another key are worthless")
		return
	}
	public, err := t.public()
	if err != nil && !t.cluster.Redacted {
		t.refuse(l, idSecret, "the service-account key cannot be read: "+err.Error(), "restore Secret default/"+t.id+"-service-account")
		return
	}
	o := t.secretObject("sa", PhaseTranslate)
	if err == nil {
		data(o, "tls.crt", public, t.from("service-account", l))
	}
	data(o, "tls.key", withNewline([]byte(l.text())), t.from("service-account", l))
	t.add(o)
}

// publicKeyOf starts deriving the public key of the cluster's service-account key, which takes as long as a tenth of everything else
// because the private key is checked. The returned function waits for it.
func publicKeyOf(cluster *legacy.Cluster) func() ([]byte, error) {
	certificate, ok := cluster.Certificates["service-account"]
	if !ok {
		return func() ([]byte, error) { return nil, errNoKey }
	}
	type result struct {
		public []byte
		err    error
	}
	done := make(chan result, 1)
	go func() {
		public, err := publicKey(certificate.Secret.Object.Data["key"])
		done <- result{public, err}
	}()
	return func() ([]byte, error) {
		r := <-done
		return r.public, r.err
	}
}

var errNoKey = errors.New("it holds no PEM private key")

// publicKey derives the PKIX PEM public key of a PEM private key (PKCS#1, PKCS#8 or SEC 1).
func publicKey(private []byte) ([]byte, error) {
	block, _ := pem.Decode(private)
	if block == nil {
		return nil, errNoKey
	}
	type publisher interface{ Public() any }
	var parsed any
	var err error
	switch block.Type {
	case "RSA PRIVATE KEY":
		key, e := x509.ParsePKCS1PrivateKey(block.Bytes)
		if e != nil {
			return nil, fmt.Errorf("parsing PKCS#1: %w", e)
		}
		parsed = &key.PublicKey
	case "EC PRIVATE KEY":
		key, e := x509.ParseECPrivateKey(block.Bytes)
		if e != nil {
			return nil, fmt.Errorf("parsing SEC 1: %w", e)
		}
		parsed = &key.PublicKey
	default:
		parsed, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parsing PKCS#8: %w", err)
		}
		if key, ok := parsed.(publisher); ok {
			parsed = key.Public()
		}
	}
	der, err := x509.MarshalPKIXPublicKey(parsed)
	if err != nil {
		return nil, fmt.Errorf("encoding public key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// generatedNote stands where a value will be made when the object is applied.
const generatedNote = "made when the object is applied"

// frontProxy makes <id>-proxy, a new CA of its own: reusing the cluster's CA would let any client certificate act as front proxy.
func (t *translation) frontProxy() {
	o := t.secretObject("proxy", PhaseTranslate)
	rule := t.from("front-proxy")
	rule.Generated = true
	data(o, "tls.crt", []byte(generatedNote), rule)
	data(o, "tls.key", []byte(generatedNote), rule)
	o.Note = "a new CA; API servers publish it beside the legacy one, so aggregated API servers trust both"
	t.add(o)
}

// kubeconfig makes <id>-kubeconfig, user-provided until phase finalize: one made by Cluster API would be owned by the control plane and go with it in a rollback.
func (t *translation) kubeconfig() {
	l := t.get(sourceSecret+"/kubeconfig", "data.kubeConfig")
	if l == nil {
		t.find(idSecret, nil, "Secret "+t.id+"/"+t.id+"-kubeconfig with key kubeConfig is missing", "restore it, or give one with --workload-kubeconfig")
		return
	}
	o := t.secretObject("kubeconfig", PhaseTranslate)
	data(o, "value", []byte(l.text()), t.from("kubeconfig", l))
	o.Note = "uses a legacy client certificate, until phase finalize gives it to the control plane, which renews it"
	t.add(o)
}

// encryption makes the API server's encryption configuration out of the very file the running one reads, and compares its key with
// the Secret. Order and names of the keys stay, or existing Secrets become unreadable.
func (t *translation) encryption() {
	secret := t.get(sourceSecret+"/encryption", "data.encryption")
	if secret == nil {
		t.find(idEncryption, nil, "there is no encryption key: Secret default/"+t.id+"-encryption is missing", "restore it from a backup of the management cluster; the key is also in the master's Ignition")
	}
	configured, path := t.masterEncryption()
	if configured == nil {
		if secret != nil {
			t.find(idEncryption, secret, "the master's Ignition holds no readable encryption configuration to compare with", "look at ConfigMap "+t.id+"/master-"+t.id+"-*")
		}
		return
	}
	keyLeaf := t.setting(legacy.Master, "file:"+fileEncryption+"#", path)
	if secret != nil && keyLeaf != nil && strings.TrimSpace(secret.text()) != keyLeaf.text() {
		t.refuse(secret, idEncryption, "the key in the Secret is not the one the API server was started with", "find out which key encrypts the data in etcd before anything else")
		return
	}
	o := t.secretObject("encryption-config", PhaseTranslate)
	leaves := []*leaf{secret, t.flag("--encryption-provider-config")}
	for _, l := range t.reader.leaves {
		if strings.HasPrefix(l.source, sourceIgnition+"/") && strings.HasPrefix(l.path, "file:"+fileEncryption) {
			leaves = append(leaves, l)
		}
	}
	data(o, "config", configured, t.from("encryption", leaves...))
	t.add(o)
}

// masterEncryption returns the encryption configuration of the first master and the path of its first aescbc key.
func (t *translation) masterEncryption() ([]byte, string) {
	for _, node := range t.cluster.Masters() {
		if file := node.Ignition.File(fileEncryption); file != nil && len(file.Content) > 0 {
			return file.Content, "resources[0].providers[0].aescbc.keys[0].secret"
		}
	}
	return nil, ""
}
