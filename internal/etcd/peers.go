package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// What a server measures about the others (etcd v3.5 and v3.6, server/etcdserver/api/rafthttp/metrics.go).
const (
	metricActivePeers = "etcd_network_active_peers"
	metricRoundTrip   = "etcd_network_peer_round_trip_time_seconds"
	metricReceived    = "etcd_network_peer_received_bytes_total"
	labelRemote       = "Remote"
	labelTo           = "To"
	labelFrom         = "From"
)

// Peer is another member as one server sees it over the network.
type Peer struct {
	// Active: there are connections, and what was sent last has arrived, as far as the server knows: it learns of a machine that ended without a word only when its connections time out.
	Active bool
	// Received are the bytes that came from it since the server started. Every member answers the leader's heartbeats, ten times a second by default.
	Received float64
	// Measured is how often the time of a message there and back was measured since the server started, and Total the sum: two looks tell what was measured in between. etcd
	// measures every half minute.
	Measured uint64
	Total    time.Duration
}

// Since is the mean time of a message there and back since an earlier look, and whether any was measured.
func (p Peer) Since(earlier Peer) (time.Duration, bool) {
	if p.Measured <= earlier.Measured {
		return 0, false
	}
	return (p.Total - earlier.Total) / time.Duration(p.Measured-earlier.Measured), true //nolint:gosec // Counts of half minutes.
}

// Peers tells how the server at one endpoint reaches the other members, learners as well.
func (c *Client) Peers(ctx context.Context, endpointURL string) (map[ID]Peer, error) {
	text, err := c.Metrics(ctx, endpointURL)
	if err != nil {
		return nil, err
	}
	peers, err := readPeers(text)
	if err != nil {
		return nil, &Error{Endpoint: endpointURL, Operation: "metrics", Err: err}
	}
	return peers, nil
}

// readPeers takes the peers out of a page of metrics.
func readPeers(text []byte) (map[ID]Peer, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reading it: %w", err)
	}
	if len(families) == 0 {
		return nil, errors.New("there are none")
	}
	peers := map[ID]Peer{}
	each := func(metric, label string, change func(*Peer, *dto.Metric)) error {
		for _, m := range families[metric].GetMetric() {
			for _, pair := range m.GetLabel() {
				if pair.GetName() != label {
					continue
				}
				var id ID
				if err := id.UnmarshalText([]byte(pair.GetValue())); err != nil {
					return err
				}
				p := peers[id]
				change(&p, m)
				peers[id] = p
			}
		}
		return nil
	}
	err = each(metricActivePeers, labelRemote, func(p *Peer, m *dto.Metric) { p.Active = m.GetGauge().GetValue() > 0 })
	if err != nil {
		return nil, err
	}
	err = each(metricReceived, labelFrom, func(p *Peer, m *dto.Metric) { p.Received = m.GetCounter().GetValue() })
	if err != nil {
		return nil, err
	}
	err = each(metricRoundTrip, labelTo, func(p *Peer, m *dto.Metric) {
		if n := m.GetHistogram().GetSampleCount(); n > 0 {
			p.Measured, p.Total = n, time.Duration(m.GetHistogram().GetSampleSum()*float64(time.Second))
		}
	})
	return peers, err
}
