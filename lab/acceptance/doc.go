// Package acceptance tries the product against the real components: what unit tests show with fakes, these tests show with an API
// server, Cluster API's webhooks and objects that the real legacy operator wrote.
package acceptance
