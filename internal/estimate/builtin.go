package estimate

import "time"

// builtIn are the figures for steps that nobody has measured: defaults to plan the first nights with, on the careful side, and no measurements. A test holds the
// list to the steps of the graph.
func builtIn() map[string]Range {
	const s, m = time.Second, time.Minute
	return map[string]Range{
		"fence/record":   {P50: 5 * s, P90: 30 * s},
		"fence/evidence": {P50: 20 * s, P90: m},
		"fence/silence":  {P50: 15 * s, P90: m},
		"fence/settle":   {P50: 65 * s, P90: 2 * m},

		"translate/objects": {P50: 15 * s, P90: m},
		"translate/paused":  {P50: 10 * s, P90: m},

		"adopt/machines":            {P50: 20 * s, P90: 2 * m},
		"adopt/nodes":               {P50: 10 * s, P90: m},
		"adopt/free-infrastructure": {P50: 10 * s, P90: m},
		"adopt/free-cluster":        {P50: 10 * s, P90: m},
		"adopt/free-machines":       {P50: 30 * s, P90: 2 * m},
		"adopt/release":             {P50: 15 * s, P90: m},
		"adopt/proof":               {P50: 20 * s, P90: m},
		"adopt/lock":                {P50: 20 * s, P90: m},

		"control-plane/well":         {P50: 5 * s, P90: 30 * s},
		"control-plane/snapshot":     {P50: 30 * s, P90: 3 * m},
		"control-plane/api-services": {P50: 5 * s, P90: 30 * s},
		"control-plane/admission":    {P50: 5 * s, P90: 30 * s},
		"control-plane/kube-proxy":   {P50: 5 * s, P90: 30 * s},
		"control-plane/attach":       {P50: 30 * s, P90: 3 * m},
		"control-plane/reach":        {P50: 5 * s, P90: 30 * s},
		"control-plane/boot":         {P50: 3 * m, P90: 10 * m},
		"control-plane/join":         {P50: 4 * m, P90: 12 * m},
		"control-plane/promote":      {P50: m, P90: 3 * m},
		"control-plane/server":       {P50: 3 * m, P90: 8 * m},
		"control-plane/serve":        {P50: m, P90: 4 * m},
		"control-plane/controllers":  {P50: m, P90: 3 * m},
		"control-plane/lead":         {P50: 5 * s, P90: 30 * s},
		"control-plane/unlist":       {P50: 15 * s, P90: m},
		"control-plane/drain":        {P50: 2 * m, P90: 10 * m},
		"control-plane/leave":        {P50: 30 * s, P90: 2 * m},
		"control-plane/retire":       {P50: 2 * m, P90: 5 * m},
		"control-plane/unreach":      {P50: 5 * s, P90: 30 * s},
		"control-plane/recognize":    {P50: 30 * s, P90: 3 * m},
		"control-plane/hand-over":    {P50: m, P90: 5 * m},
		"control-plane/refer":        {P50: 10 * s, P90: m},
		growth:                       {P50: 15 * m, P90: 40 * m},

		Worker:  {P50: 12 * m, P90: 30 * m},
		settled: {P50: 20 * s, P90: 2 * m},

		"finalize/calm":       {P50: 20 * s, P90: 2 * m},
		"finalize/list":       {P50: 20 * s, P90: m},
		"finalize/ingress":    {P50: 20 * s, P90: 2 * m},
		"finalize/services":   {P50: 20 * s, P90: 2 * m},
		"finalize/configs":    {P50: 20 * s, P90: 2 * m},
		"finalize/kubeconfig": {P50: 10 * s, P90: m},
		"finalize/marks":      {P50: 15 * s, P90: m},
		"finalize/settled":    {P50: 20 * s, P90: 2 * m},
		"finalize/rest":       {P50: 30 * s, P90: 2 * m},
		"finalize/namespace":  {P50: m, P90: 5 * m},
		"finalize/network":    {P50: 30 * s, P90: 3 * m},
		"finalize/identity":   {P50: 15 * s, P90: m},
	}
}
