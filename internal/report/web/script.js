(() => {
  'use strict';
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = id => document.getElementById(id);
  for (const e of all('[data-script]')) e.hidden = false;

  // The document is embedded with <, > and & escaped; without these escapes it is the JSON file, byte for byte.
  const raw = byId('document');
  const download = byId('download');
  if (raw && download) {
    const plain = { u003c: '<', u003e: '>', u0026: '&' };
    download.addEventListener('click', () => {
      const text = raw.textContent.replace(/\\(u003[ce]|u0026|[^])/g, (match, code) => plain[code] || match);
      const link = document.createElement('a');
      link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
      link.download = download.dataset.file;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10000);
    });
  }

  const toggle = byId('toggle');
  const folds = all('details');
  if (toggle) {
    if (!folds.length) toggle.hidden = true;
    toggle.addEventListener('click', () => {
      const open = toggle.dataset.open !== 'yes';
      for (const d of folds) d.open = open;
      toggle.dataset.open = open ? 'yes' : '';
      toggle.textContent = open ? 'Close all details' : 'Open all details';
    });
  }
  const print = byId('print');
  if (print) print.addEventListener('click', () => window.print());
  let closed = [];
  window.addEventListener('beforeprint', () => {
    closed = folds.filter(d => !d.open);
    for (const d of closed) d.open = true;
  });
  window.addEventListener('afterprint', () => {
    for (const d of closed) d.open = false;
  });

  const filter = byId('filter');
  if (filter) {
    const rows = all('tbody tr', byId('field-table')).map(row => ({ row, text: row.textContent.toLowerCase(), kind: row.dataset.kind }));
    const words = byId('filter-text');
    const kind = byId('filter-kind');
    const result = byId('filter-result');
    const apply = () => {
      const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const r of rows) {
        const match = (!kind.value || r.kind === kind.value) && wanted.every(w => r.text.includes(w));
        r.row.hidden = !match;
        if (match) shown++;
      }
      result.textContent = `${shown} of ${rows.length} fields`;
    };
    words.addEventListener('input', apply);
    kind.addEventListener('change', apply);
    filter.addEventListener('submit', e => e.preventDefault());
    apply();
  }
})();
