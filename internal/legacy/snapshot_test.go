package legacy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/giantswarm/cluster-api-provider-kvm/internal/finding"
)

func TestTheRealClusterLoadsCompletely(t *testing.T) {
	t.Parallel()
	c := load(t, open(t, fixture("al9qy")), "al9qy")
	assert.Empty(t, c.Problems)
	assert.Equal(t, "acme", c.Organization)
	assert.Equal(t, "Release/v16.2.1", c.Release.Ref.String())
	assert.Len(t, c.CertConfigs, 10)
	assert.Len(t, c.Certificates, 10)
	assert.Equal(t, "Secret/default/al9qy-encryption", c.Encryption.Ref.String())
	assert.Equal(t, "Secret/al9qy/al9qy-kubeconfig", c.Kubeconfig.Ref.String())
	assert.Len(t, c.Ingresses, 2, "the v1beta1 view of an ingress is the same object")
	assert.Len(t, c.Claims, 3)
	assert.Len(t, c.Volumes, 3)
	assert.Len(t, c.RoleBindings, 2)
	assert.Len(t, c.Secrets, 2)
	require.Len(t, c.Nodes, 4)
	master, worker := c.Masters()[0], c.Workers()[0]
	assert.Equal(t, "p1l6x", master.ID)
	assert.Equal(t, 1, master.Index)
	assert.Equal(t, "8G", master.Sizing.Memory)
	assert.Equal(t, "k3m9a", worker.ID)
	assert.Equal(t, 2, worker.Index)
	assert.Len(t, worker.Sizing.HostVolumes, 2)
	assert.InDelta(t, 40.5, c.Workers()[2].Sizing.Disk.Value+0, 0.001)
	for _, n := range c.Nodes {
		assert.Equal(t, string(n.Role)+"-"+n.ID, n.Deployment.Ref.Name)
		assert.Equal(t, n.Pod.Object.OwnerReferences[0].UID, n.ReplicaSet.Ref.UID)
		assert.Equal(t, string(n.Role)+"-al9qy-"+n.ID, n.ConfigMap.Ref.Name)
		assert.Equal(t, n.Pod.Ref.Name, n.Node.Ref.Name)
		assert.Equal(t, "2.2.0", n.Ignition.Version)
	}
	assert.Len(t, c.Inside.Nodes, 4)
	assert.Len(t, c.Inside.Objects, 65)
	assert.Nil(t, c.Service, "the fixture has no StorageConfig")
	assert.Equal(t, "pods.yaml#1", master.Pod.Origin)
	assert.NotEmpty(t, c.Config.Raw["status"])
}

func TestTheRealInstallationLoadsAsItLies(t *testing.T) {
	t.Parallel()
	source := open(t, fleetDir(t, "al9qy", "b4n9x"))
	ids, err := source.IDs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"al9qy", "b4n9x"}, ids)
	for _, id := range ids {
		c := load(t, source, id)
		assert.Empty(t, c.Problems)
		assert.Contains(t, c.Service.Entries, "/cluster/"+id+"/owner")
		assert.Contains(t, c.Service.Entries, "/organization/"+c.Organization+"/cluster/"+id)
		assert.Len(t, c.Service.Entries, 4)
		require.NotNil(t, c.Inside)
		assert.Len(t, c.Inside.Nodes, len(c.Nodes))
	}
	fleet, err := source.Fleet(t.Context())
	require.NoError(t, err)
	assert.Empty(t, fleet.Problems)
	assert.Equal(t, []string{"d0v8m", "q7w2k"}, fleet.Records)
	assert.Len(t, fleet.Hosts, 15)
	assert.Len(t, fleet.CRDs, 12)
	assert.Equal(t, int64(63), fleet.Hosts[0].CPU)
	assert.Equal(t, int64(520<<30), fleet.Hosts[0].Memory)
	assert.True(t, fleet.Hosts[0].Ready && fleet.Hosts[0].Schedulable)

	_, err = source.Load(t.Context(), "q7w2k")
	assert.ErrorIs(t, err, ErrNotFound)
}

func TestEveryFixtureLoadsWithTheProblemsItWasMadeFor(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"being-deleted":               {},
		"broken-ignition":             {ProblemIgnitionMalformed},
		"missing-encryption-secret":   {ProblemNoEncryption},
		"no-master":                   {ProblemNoMaster},
		"not-ready-worker":            {},
		"old-label-secrets":           {},
		"paired-lists-differ":         {ProblemUnpairedSizing},
		"two-masters":                 {ProblemSeveralMasters},
		"hostile-names":               {},
		"host-path-etcd":              {},
		"v14-calico-on-etcd":          {},
		"mid-upgrade-mixed-operators": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := open(t, fixture(name))
			ids, err := source.IDs(t.Context())
			require.NoError(t, err)
			require.Len(t, ids, 1)
			assert.Equal(t, want, problemIDs(load(t, source, ids[0]).Problems))
		})
	}
}

func TestAnInventoryPictureKnowsSizesButNoSecrets(t *testing.T) {
	t.Parallel()
	source := open(t, fixture("al9qy"))
	c, err := LoadInventory(t.Context(), source, "al9qy")
	require.NoError(t, err)
	assert.Empty(t, c.Problems)
	assert.Equal(t, "acme", c.Organization)
	assert.Equal(t, "16.2.1", c.Config.Object.Labels["release.giantswarm.io/version"])
	assert.Len(t, c.Nodes, 4)
	assert.NotNil(t, c.Nodes[0].Pod)
	assert.NotNil(t, c.Nodes[0].Node)
	assert.Nil(t, c.Nodes[0].Ignition)
	assert.Empty(t, c.Certificates)
	assert.Empty(t, c.Secrets)
}

func TestLoadingTwiceGivesEqualPicturesThatShareNothing(t *testing.T) {
	t.Parallel()
	source := open(t, fixture("al9qy"))
	one := load(t, source, "al9qy")
	delete(one.Config.Raw, "spec")
	one.Release.Raw["spec"] = nil
	two, three := load(t, source, "al9qy"), load(t, source, "al9qy")
	assertSame(t, two, three)
	assert.NotNil(t, two.Config.Raw["spec"])
}

func TestBadInputIsNamedAndTheRestIsStillRead(t *testing.T) {
	t.Parallel()
	big := strings.Repeat("x", 9*mebibyte)
	cases := map[string]struct {
		files map[string]string
		want  []string
		says  string
	}{
		"YAML that does not parse":                {map[string]string{"dir/a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: [}\n"}, []string{ProblemFileMalformed}, "dir/a.yaml does not parse: document 1, line 3"},
		"a later document that does not parse":    {map[string]string{"a.yml": "a: 1\n---\nb: 2\n---\nc:\n  - d\n e: f\n"}, []string{ProblemFileMalformed}, "document 3, line "},
		"JSON that does not parse":                {map[string]string{"a.json": "{\n\"apiVersion\": \"v1\",\n\"kind\": oops}"}, []string{ProblemFileMalformed}, "a.json does not parse: object 1, line 3"},
		"JSON that ends early":                    {map[string]string{"a.json": "[{\"apiVersion\": \"v1\","}, []string{ProblemFileMalformed}, "unexpected end"},
		"a binary file that claims to be YAML":    {map[string]string{"a.yaml": "\x00\x01\x02"}, []string{ProblemFileMalformed}, "binary"},
		"an object larger than the limit":         {map[string]string{"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: " + big + "}\n"}, []string{ProblemTooLarge}, "limit of 8 MiB"},
		"a JSON object larger than the limit":     {map[string]string{"a.json": `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"a":"` + big + `"}}`}, []string{ProblemTooLarge}, "ConfigMap/a"},
		"billion laughs":                          {map[string]string{"a.yaml": laughs()}, []string{ProblemHostileDocument}, "a.yaml"},
		"deep nesting in YAML":                    {map[string]string{"a.yaml": "apiVersion: v1\nkind: X\nspec: " + strings.Repeat("[", 500) + strings.Repeat("]", 500)}, []string{ProblemHostileDocument}, "nested"},
		"deep nesting in JSON":                    {map[string]string{"a.json": `{"apiVersion":"v1","kind":"X","spec":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + "}"}, []string{ProblemHostileDocument}, "nested"},
		"deep nesting far beyond any stack":       {map[string]string{"a.yaml": strings.Repeat("[", 1<<20)}, []string{ProblemHostileDocument}, ""},
		"an object without a name":                {map[string]string{"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {generateName: x}\n"}, []string{ProblemObjectIncomplete}, "metadata.name"},
		"a legacy object without metadata":        {map[string]string{"a.yaml": "apiVersion: provider.giantswarm.io/v1alpha1\nkind: KVMConfig\nspec: {}\n"}, []string{ProblemObjectIncomplete}, "KVMConfig"},
		"a name that is a number":                 {map[string]string{"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: 12345}\n"}, []string{ProblemObjectIncomplete}, ""},
		"a workload cluster without a home":       {map[string]string{"x/workload-cluster/n.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: node}\n"}, []string{ProblemInsideWithoutHome}, "x/workload-cluster"},
		"leftovers of a deleted cluster":          {map[string]string{"c.yaml": "apiVersion: core.giantswarm.io/v1alpha1\nkind: CertConfig\nmetadata: {name: a, namespace: default, labels: {clusterID: gone1}}\n"}, []string{ProblemObjectsOfUnknown}, "gone1"},
		"contradictory duplicates":                {map[string]string{"a.yaml": "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: a}\nx: 1\n", "b.json": `{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":"a"},"x":2}`}, []string{ProblemDuplicateContradicts}, "a.yaml#1 and b.json#1"},
		"two states of one object":                {map[string]string{"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: u}\nx: 1\n", "b.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: u}\nx: 2\n"}, []string{ProblemDuplicateOlder}, "a.yaml#1 and b.yaml#1"},
		"equal duplicates":                        {map[string]string{"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a, resourceVersion: '1'}\n", "b.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n"}, nil, ""},
		"files that are no Kubernetes objects":    {map[string]string{"README.md": "# apiVersion: [ and kind\n", "ca.key": "-----BEGIN", "values.yaml": "a: b\n", "d/ignition.json": `{"ignition":{"version":"2.2.0"}}`, "empty.yaml": "", "comment.yaml": "# nothing\n---\n", "kubeconfig.yaml": "apiVersion: v1\nkind: Config\nusers: []\n", "list.json": "[1,2]", "text.json": `"text"`}, nil, ""},
		"plans and reports of this program":       {map[string]string{"plan.json": `{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Plan","metadata":{"name":"p"}}`, "r.yaml": "apiVersion: migration.giantswarm.io/v1alpha1\nkind: CheckReport\n"}, nil, ""},
		"a plan as it is saved":                   {map[string]string{"plan.json": `{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Plan","metadata":{"id":"p"},"cluster":{"id":"ab1cd"}}`, "inventory.json": `{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Inventory","metadata":{}}`, "list.json": `[{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"CheckReport","metadata":{"createdAt":"now"}}]`, "plan.yaml": "apiVersion: migration.giantswarm.io/v1alpha1\nkind: Plan\nmetadata:\n  id: p\n"}, nil, ""},
		"a plan larger than any object":           {map[string]string{"plan.json": `{"apiVersion":"migration.giantswarm.io/v1alpha1","kind":"Plan","metadata":{"id":"p"},"fields":["` + big + `"]}`}, nil, ""},
		"JSON that gives a key twice":             {map[string]string{"a.json": "{\"apiVersion\":\"release.giantswarm.io/v1alpha1\",\n\"kind\":\"Release\",\"metadata\":{\"name\":\"v1\"},\n\"spec\":{\"state\":\"active\",\n\"state\":\"wip\"}}"}, []string{ProblemDuplicateKey}, `a.json, object 1, line 4: key "state" already set in map`},
		"a text file that looks like YAML":        {map[string]string{"notes.txt": "apiVersion: v1\nkind: Pod\nmetadata: {name: [}\n"}, nil, ""},
		"YAML that begins with a bracket":         {map[string]string{"a.yaml": "{apiVersion: v1, kind: Pod, metadata: {name: a}}"}, nil, ""},
		"a hostile name with control characters":  {map[string]string{"\x1b[31m.yaml": "{"}, []string{ProblemFileMalformed}, `\x1b[31m.yaml`},
		"several problems, sorted":                {map[string]string{"b.yaml": "{", "a.json": "}"}, []string{ProblemFileMalformed}, "a.json"},
		"a YAML file with tabs and a broken List": {map[string]string{"a.yaml": "apiVersion: v1\nkind: List\nitems: notalist\n"}, nil, ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if size := len(strings.Join(slices.Collect(maps.Values(c.files)), "")); testing.Short() && size >= mebibyte {
				t.Skip("megabytes that one goroutine reads")
			}
			c.files["good/kvmconfig"] = minimalConfig // no extension, and read all the same
			source := open(t, write(t, c.files))
			ids, err := source.IDs(t.Context())
			require.NoError(t, err)
			assert.Equal(t, []string{"ab1cd"}, ids)
			fleet, err := source.Fleet(t.Context())
			require.NoError(t, err)
			got := problemIDs(fleet.Problems)
			require.Equal(t, ProblemNoStorageConfig, got[len(got)-1])
			assert.Equal(t, append(append([]string{}, c.want...), ProblemNoStorageConfig), got)
			assert.Contains(t, fleet.Problems[0].Message, c.says)
			for _, p := range fleet.Problems {
				assert.NotContains(t, p.Message+p.Object, "\x1b")
				assert.Less(t, len(p.Message), 1000)
			}
		})
	}
}

func TestBrokenFilesAreNamedOrHarmless(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(testdata, "broken")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	want := map[string]string{
		"truncated.yaml": ProblemFileMalformed, "binary.json": ProblemFileMalformed, "wrong-kind.yaml": ProblemObjectIncomplete, "duplicate-contradicting": ProblemDuplicateContradicts,
		"duplicate-key.yaml": ProblemDuplicateKey, "alias-bomb.yaml": ProblemHostileDocument, "deep-nesting.json": ProblemHostileDocument, "not-utf8.yaml": ProblemFileMalformed,
		"truncated.tar.gz": ProblemArchiveDamaged, "traversal.tar": ProblemArchiveEntry,
	}
	for _, entry := range entries {
		t.Run(entry.Name(), func(t *testing.T) {
			t.Parallel()
			source := open(t, filepath.Join(dir, entry.Name()))
			ids, err := source.IDs(t.Context())
			require.NoError(t, err)
			for _, id := range ids {
				load(t, source, id)
			}
			fleet, err := source.Fleet(t.Context())
			require.NoError(t, err)
			expected := []string{ProblemNoStorageConfig}
			if id := want[entry.Name()]; id != "" {
				expected = []string{id, ProblemNoStorageConfig}
			}
			assert.Equal(t, expected, problemIDs(fleet.Problems))
		})
	}
}

func TestAClusterIsToldWhatCouldNotBeReadWhereItsObjectsLie(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(minimalConfig, "ab1cd", "zz9zz")
	both := []string{"ab1cd", "zz9zz"}
	for name, test := range map[string]struct {
		files map[string]string
		told  []string
		says  string
	}{
		"beside it":        {map[string]string{"a/config.yaml": minimalConfig, "z/config.yaml": other, "a/secrets.yaml": "{"}, []string{"ab1cd"}, "may be of this cluster: LEG-READ-002 a/secrets.yaml does not parse"},
		"below it":         {map[string]string{"a/config.yaml": minimalConfig, "z/config.yaml": other, "a/b/c/secrets.yaml": "{"}, []string{"ab1cd"}, "a/b/c/secrets.yaml"},
		"with all others":  {map[string]string{"a.yaml": minimalConfig, "z.yaml": other, "secrets.yaml": "{"}, both, "secrets.yaml"},
		"where nobody has": {map[string]string{"a/config.yaml": minimalConfig, "z/config.yaml": other, "shared/volumes.yaml": "{"}, both, "shared/volumes.yaml"},
		"by their kinds": {map[string]string{
			"configs/a.yaml": minimalConfig, "configs/z.yaml": other, "secrets/z.yaml": "{",
			"secrets/a.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: ab1cd-api, namespace: default, labels: {giantswarm.io/cluster: ab1cd}}\n",
		}, both, "secrets/z.yaml"},
		"too much to say": {map[string]string{"a.yaml": minimalConfig, "1.yaml": "{", "2.yaml": "{", "3.yaml": "{", "4.yaml": "{", "5.yaml": "{"}, []string{"ab1cd"}, "; and 2 more"},
		"nothing lost":    {map[string]string{"a.yaml": minimalConfig, "notes.txt": "{"}, nil, ""},
	} {
		source := open(t, write(t, test.files))
		ids, err := source.IDs(t.Context())
		require.NoError(t, err)
		var told []string
		for _, id := range ids {
			for _, p := range withID(load(t, source, id).Problems, ProblemPerhapsUnread) {
				told = append(told, id)
				assert.Contains(t, p.Message, test.says, name)
				assert.Equal(t, finding.Error, p.Severity, name)
			}
		}
		assert.Equal(t, test.told, told, name)
	}
}

func TestAClusterIsToldOfKeysThatItsObjectGivesTwice(t *testing.T) {
	t.Parallel()
	twice := strings.Replace(minimalConfig, "metadata:\n", "metadata:\n  generation: 1\n  generation: 2\n", 1)
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: ab1cd, name: q}\n"
	for name, test := range map[string]struct {
		text string
		want []string
	}{
		"its KVMConfig":   {twice, []string{"KVMConfig/default/ab1cd"}},
		"another object":  {minimalConfig + "---\n" + pod, []string{"Pod/ab1cd/q"}},
		"one of a list":   {minimalConfig + "---\napiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: ab1cd, name: q}}\n- {apiVersion: v1, kind: Pod, metadata: {name: r, namespace: ab1cd}}\n", nil},
		"nothing of this": {minimalConfig, nil},
	} {
		var told []string
		for _, p := range withID(load(t, open(t, write(t, map[string]string{"a.yaml": test.text})), "ab1cd").Problems, ProblemDuplicateKey) {
			told = append(told, p.Object)
			assert.Contains(t, p.Message, "already set in map", name)
		}
		assert.Equal(t, test.want, told, name)
	}
}

func TestWhatAnArchiveLacksMayBeOfEveryCluster(t *testing.T) {
	t.Parallel()
	name := archive(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "a/config.yaml", PAXRecords: map[string]string{"TEST.content": minimalConfig}},
		&tar.Header{Typeflag: tar.TypeReg, Name: "z/config.yaml", PAXRecords: map[string]string{"TEST.content": strings.ReplaceAll(minimalConfig, "ab1cd", "zz9zz")}},
		&tar.Header{Typeflag: tar.TypeReg, Name: "z/pods.json", PAXRecords: map[string]string{"TEST.content": strings.Repeat(" ", 4*mebibyte)}},
	)
	source := openWith(t, name, Options{MaxArchiveBytes: mebibyte})
	for _, id := range []string{"ab1cd", "zz9zz"} {
		assert.Len(t, withID(load(t, source, id).Problems, ProblemPerhapsUnread), 1, id)
	}
}

func laughs() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [lol,lol,lol,lol,lol,lol,lol,lol,lol,lol]\n")
	for i := 1; i < 10; i++ {
		previous := "*a" + string(rune('0'+i-1))
		b.WriteString("a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.Repeat(previous+",", 9) + previous + "]\n")
	}
	return b.String()
}

func TestAYAMLFileLargerThanTheLimitIsNotRead(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"a.yaml": strings.Repeat("# comment\n", 1000), "b.yaml": minimalConfig})
	source := openWith(t, dir, Options{MaxFileBytes: 1000})
	fleet, err := source.Fleet(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{ProblemTooLarge, ProblemNoStorageConfig}, problemIDs(fleet.Problems))
	assert.Contains(t, fleet.Problems[0].Hint, "Split")
}

func TestYAMLBeyondTheMemoryBudgetIsSpooled(t *testing.T) {
	t.Parallel()
	files, problems, err := openStore(t.Context(), fixture("al9qy"), Options{}.withDefaults())
	require.NoError(t, err)
	require.Empty(t, problems)
	var spooled, kept int
	memory := &budget{left: 100 << 10}
	for i := range files.files {
		s := scanner{store: files, file: i, opts: Options{}.withDefaults(), memory: memory, heavy: make(chan struct{}, 1)}
		s.scan()
		require.Empty(t, s.result.problems)
		for j := range s.result.entries {
			e := &s.result.entries[j]
			o, err := (&snapshot{store: files}).load(e)
			require.NoError(t, err)
			assert.Equal(t, e.ref, refOfRaw(o.raw))
			if e.spooled {
				spooled++
			} else {
				kept++
			}
		}
	}
	assert.Positive(t, spooled)
	assert.Positive(t, kept)
	require.NoError(t, files.close())
}

func TestALinkIsReadOnlyWhenItStaysInside(t *testing.T) {
	t.Parallel()
	outside := write(t, map[string]string{"secret.yaml": strings.ReplaceAll(minimalConfig, "ab1cd", "zz9zz")})
	dir := write(t, map[string]string{"real/a.yaml": minimalConfig})
	link := func(target, name string) { require.NoError(t, os.Symlink(target, filepath.Join(dir, name))) }
	link("real/a.yaml", "inside.yaml")
	link(filepath.Join(outside, "secret.yaml"), "absolute.yaml")
	link("loop.yaml", "loop.yaml")
	link("..", "up")
	link("real", "folder")
	link("nowhere", "dangling.json")
	source := open(t, dir)
	ids, err := source.IDs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"ab1cd"}, ids)
	fleet, err := source.Fleet(t.Context())
	require.NoError(t, err)
	var skipped []string
	for _, p := range withID(fleet.Problems, ProblemLinkSkipped) {
		skipped = append(skipped, p.Object)
	}
	assert.Equal(t, []string{"absolute.yaml", "dangling.json", "folder", "loop.yaml", "up"}, skipped)
}

func TestAnUnreadableFileIsAProblem(t *testing.T) {
	t.Parallel()
	if os.Getuid() == 0 {
		t.Skip("root may read everything")
	}
	dir := write(t, map[string]string{"a.yaml": minimalConfig, "b.yaml": "x"})
	require.NoError(t, os.Chmod(filepath.Join(dir, "b.yaml"), 0))
	fleet, err := open(t, dir).Fleet(t.Context())
	require.NoError(t, err)
	assert.Equal(t, ProblemFileUnreadable, fleet.Problems[0].ID)
	assert.NotContains(t, fleet.Problems[0].Message, dir)
}

func TestAFileThatVanishesBetweenIndexAndLoadIsAProblem(t *testing.T) {
	t.Parallel()
	pods := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ab1cd"}}`
	dir := write(t, map[string]string{"a.yaml": minimalConfig, "pods.json": pods, "more.json": strings.ReplaceAll(pods, `"p"`, `"q"`)})
	source := open(t, dir)
	require.NoError(t, os.Remove(filepath.Join(dir, "pods.json")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "more.json"), []byte("overwritten with something else that is long enough to be read without trouble"), 0o600))
	c := load(t, source, "ab1cd")
	unreadable := withID(c.Problems, ProblemFileUnreadable)
	require.Len(t, unreadable, 2)
	assert.Contains(t, unreadable[0].Message+unreadable[1].Message, "pods.json#1")
	assert.NotNil(t, c.Config)
}

func TestArchivesAreReadLikeDirectories(t *testing.T) {
	t.Parallel()
	entry := func(name, content string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, PAXRecords: map[string]string{"TEST.content": content}}
	}
	name := archive(t,
		entry("./dump/ab1cd/kvmconfig.yaml", minimalConfig),
		entry("../../outside.yaml", strings.ReplaceAll(minimalConfig, "ab1cd", "zz9zz")),
		entry("/absolute.yaml", strings.ReplaceAll(minimalConfig, "ab1cd", "zz9zz")),
		entry("dump/ab1cd/workload-cluster/n.json", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}`),
		&tar.Header{Typeflag: tar.TypeSymlink, Name: "link.yaml", Linkname: "/etc/passwd"},
		entry("dump/ab1cd/kvmconfig.yaml", "different"),
	)
	source := open(t, name)
	assert.Equal(t, "snapshot a.tar.gz", source.Describe())
	ids, err := source.IDs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"ab1cd"}, ids)
	assert.Len(t, load(t, source, "ab1cd").Inside.Nodes, 1)
	fleet, err := source.Fleet(t.Context())
	require.NoError(t, err)
	skipped := withID(fleet.Problems, ProblemArchiveEntry)
	require.Len(t, skipped, 4)
}

func TestADamagedArchiveGivesWhatComesBeforeTheDamage(t *testing.T) {
	t.Parallel()
	noise := strings.Repeat("0123456789abcdefghijklmnopqrstuvwxyz%$#@!", 20000)
	name := archive(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "a.yaml", PAXRecords: map[string]string{"TEST.content": minimalConfig}},
		&tar.Header{Typeflag: tar.TypeReg, Name: "b.txt", PAXRecords: map[string]string{"TEST.content": noise}},
	)
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	step := 97
	if testing.Short() {
		step = 970
	}
	for cut := 1; cut < len(text); cut += step {
		short := filepath.Join(t.TempDir(), "short.tgz")
		require.NoError(t, os.WriteFile(short, text[:len(text)-cut], 0o600))
		source, err := Open(t.Context(), short, Options{})
		if err != nil {
			continue // too short to be an archive at all
		}
		fleet, err := source.Fleet(t.Context())
		require.NoError(t, err)
		if cut > 8 { // the last bytes are a check sum that the tar reader does not need
			assert.Equal(t, ProblemArchiveDamaged, fleet.Problems[0].ID, "cut by %d", cut)
		}
		require.NoError(t, source.Close())
	}
}

func TestAnArchiveThatUnpacksToTooMuchIsCut(t *testing.T) {
	t.Parallel()
	name := archive(t,
		&tar.Header{Typeflag: tar.TypeReg, Name: "a.yaml", PAXRecords: map[string]string{"TEST.content": minimalConfig}},
		&tar.Header{Typeflag: tar.TypeReg, Name: "bomb.json", PAXRecords: map[string]string{"TEST.content": strings.Repeat(" ", 4*mebibyte)}},
	)
	source := openWith(t, name, Options{MaxArchiveBytes: mebibyte})
	fleet, err := source.Fleet(t.Context())
	require.NoError(t, err)
	assert.Equal(t, ProblemTooLarge, fleet.Problems[0].ID)
	ids, err := source.IDs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"ab1cd"}, ids)
}

func TestASingleFileIsASnapshotToo(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"one.yaml": minimalConfig})
	ids, err := open(t, filepath.Join(dir, "one.yaml")).IDs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"ab1cd"}, ids)

	var b bytes.Buffer
	zipped := gzip.NewWriter(&b)
	_, err = zipped.Write([]byte(minimalConfig))
	require.NoError(t, err)
	require.NoError(t, zipped.Close())
	name := filepath.Join(dir, "one.yaml.gz")
	require.NoError(t, os.WriteFile(name, b.Bytes(), 0o600))
	ids, err = open(t, name).IDs(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"ab1cd"}, ids)
}

func TestWhatCannotBeOpenedIsAnError(t *testing.T) {
	t.Parallel()
	dir := write(t, map[string]string{"bad.tar.gz": "\x1f\x8bnot gzip"})
	for _, name := range []string{filepath.Join(dir, "nothing"), filepath.Join(dir, "bad.tar.gz"), os.DevNull} {
		_, err := Open(t.Context(), name, Options{})
		require.Error(t, err, name)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Open(ctx, fixture("al9qy"), Options{})
	assert.ErrorIs(t, err, context.Canceled, "%v", err)
}

func TestWorkloadObjectsFindTheirCluster(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(minimalConfig, "ab1cd", "zz9zz")
	node := "apiVersion: v1\nkind: Node\nmetadata: {name: master-m0001-x}\n"
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: master-m0001-x, namespace: ab1cd, labels: {app: master, node: m0001, cluster: ab1cd}}\n"
	for name, files := range map[string]map[string]string{
		"beside the KVMConfig":            {"x/k.yaml": minimalConfig, "y.yaml": other, "x/workload-cluster/a/n.yaml": node},
		"above the KVMConfig":             {"x/deep/k.yaml": minimalConfig, "y.yaml": other, "x/workload-cluster/n.yaml": node},
		"below a folder called like it":   {"k.yaml": minimalConfig + "---\n" + other, "ab1cd/workload-cluster/n.yaml": node},
		"by the names of the VM pods":     {"k.yaml": minimalConfig + "---\n" + other + "---\n" + pod, "x/workload-cluster/n.yaml": node},
		"at the top, with a single one":   {"k.yaml": minimalConfig, "workload-cluster/n.yaml": node},
		"at the top, among two, by names": {"k.yaml": minimalConfig + "---\n" + other + "---\n" + pod, "workload-cluster/n.yaml": node},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := load(t, open(t, write(t, files)), "ab1cd")
			require.NotNil(t, c.Inside)
			assert.Equal(t, "Node/master-m0001-x", c.Inside.Nodes[0].Ref.String())
		})
	}
}

func TestTheFirstDuplicateByPathWins(t *testing.T) {
	t.Parallel()
	other := strings.ReplaceAll(minimalConfig, "cpus: 4", "cpus: 8")
	for range 5 {
		c := load(t, open(t, write(t, map[string]string{"b.yaml": other, "a.yaml": minimalConfig, "c.yaml": other})), "ab1cd")
		assert.Equal(t, 4, c.Masters()[0].Sizing.CPUs)
		duplicates := withID(c.Problems, ProblemDuplicateContradicts)
		require.Len(t, duplicates, 2)
		assert.Equal(t, finding.Block, duplicates[0].Severity)
		assert.Contains(t, duplicates[0].Message, "a.yaml#1 and b.yaml#1")
	}
}
