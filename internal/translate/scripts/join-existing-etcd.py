#!/usr/bin/python3
"""Makes the first machine of a control plane join the etcd that runs already.

kubeadm init founds an etcd of its own. This runs before it, on the machine that is initialized and on no other, and
  1. lets the names of etcd and of the API lead where they have to, before anything can fail,
  2. adds this machine to etcd as a learner, which takes part in no vote,
  3. has kubeadm start etcd alone, so that nothing competes with it while it catches up,
  4. waits until somebody has promoted it, and only then lets kubeadm init go on.
Whatever fails takes kubeadm's configuration away: cloud-init goes on after a command that failed, and kubeadm init without
a joined etcd would found a new and empty one under the customer's name.
"""

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request

CONFIG = "/run/kubeadm/kubeadm.yaml"
SETTINGS = "/etc/kubernetes/existing-etcd.json"
PATCH = "/etc/kubernetes/patches/etcd1+json.json"
PKI = "/etc/kubernetes/pki/etcd/"
HOSTS = "/etc/hosts"
PAUSE_SECONDS = 2
# How long one answer of etcd is asked for: its machine's disk may be slow, and it may be starting. cloud-init runs this once, and a failure costs the whole machine.
ASKING_SECONDS = 300
# What an answer that was lost on the way looks like; ValueError is one that was cut off.
LOST = (OSError, http.client.HTTPException, ValueError)


def say(text):
    print("join-existing-etcd: " + text, flush=True)


def own_address():
    """The address that kubeadm chooses too: the one of the default route. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect(("192.0.2.1", 9))
        return s.getsockname()[0]


def lead_names(settings, address):
    """Writes host entries. The kubelet hands them to pods in the host's network, and so to etcd."""
    wanted = [address + " " + settings["apiName"], settings["etcdAddress"] + " " + settings["etcdName"]]
    with open(HOSTS, "r+") as f:
        there = f.read().splitlines()
        missing = [line for line in wanted if line not in there]
        if missing:
            f.write("\n" + "\n".join(missing) + "\n")


def kubeadm(*phase):
    subprocess.run(["kubeadm", "init", "phase", *phase, "--config", CONFIG], check=True)


class Etcd:
    """One etcd server, asked through its JSON gateway."""

    def __init__(self, url):
        self.url = url
        self.tls = ssl.create_default_context(cafile=PKI + "ca.crt")
        self.tls.load_cert_chain(PKI + "healthcheck-client.crt", PKI + "healthcheck-client.key")

    def ask(self, path, question):
        request = urllib.request.Request(self.url + "/v3/" + path, json.dumps(question).encode())
        with urllib.request.urlopen(request, context=self.tls, timeout=20) as answer:
            return json.load(answer)


def join(etcd, peer):
    """Adds this machine as a learner, once, and returns the member table."""
    members = etcd.ask("cluster/member/list", dict())["members"]
    if any(peer in m["peerURLs"] for m in members):
        say("a member with the peer address " + peer + " is known already")
        return members
    say("adding a learner with the peer address " + peer)
    return etcd.ask("cluster/member/add", dict(peerURLs=[peer], isLearner=True))["members"]


def join_patiently(etcd, peer, patience_seconds):
    """Joins as soon as etcd answers. Adding is done once, whichever answer was lost: a member is known by its peer address."""
    began = time.monotonic()
    while True:
        try:
            return join(etcd, peer)
        except LOST as e:
            refused = isinstance(getattr(e, "reason", e), ssl.SSLCertVerificationError)
            if refused or time.monotonic() - began > patience_seconds:
                raise
            say("asking etcd again: " + repr(e))
        time.sleep(PAUSE_SECONDS)


def write_patch(members, node):
    """Names all members to the new one. kubeadm names only the new one, and of two equal flags etcd takes the second."""
    peers = ",".join((m.get("name") or node) + "=" + u for m in members for u in m["peerURLs"])
    operation = dict(op="add", path="/spec/containers/0/command/-", value="--initial-cluster=" + peers)
    os.makedirs(os.path.dirname(PATCH), exist_ok=True)
    with open(PATCH, "w") as f:
        json.dump([operation], f)


def is_voter(etcd):
    try:
        status = etcd.ask("maintenance/status", dict())
    except LOST as e:
        return False, "it does not answer: " + str(e)
    if status.get("isLearner"):
        return False, "it is a learner, at index " + status.get("raftAppliedIndex", "0")
    return bool(status.get("leader")), "it knows no leader"


def await_promotion(etcd, patience_seconds):
    began, said = time.monotonic(), ""
    while True:
        voter, why = is_voter(etcd)
        if voter:
            say("this member votes, after %d s" % (time.monotonic() - began))
            return
        if time.monotonic() - began > patience_seconds:
            raise TimeoutError("nobody has promoted this member within %d s: %s" % (patience_seconds, why))
        if why != said:
            said = why
            say("waiting for the promotion of this member: " + why)
        time.sleep(PAUSE_SECONDS)


def main():
    if not os.path.exists(CONFIG):
        return
    with open(SETTINGS) as f:
        settings = json.load(f)
    address = own_address()
    lead_names(settings, address)
    kubeadm("certs", "etcd-healthcheck-client")
    patience_seconds = min(ASKING_SECONDS, settings["patienceSeconds"])
    members = join_patiently(Etcd("https://" + settings["etcdName"] + ":2379"), "https://" + address + ":2380", patience_seconds)
    write_patch(members, socket.gethostname().lower())
    kubeadm("certs", "all")
    kubeadm("kubeconfig", "kubelet")
    kubeadm("kubelet-start")
    kubeadm("etcd", "local")
    await_promotion(Etcd("https://127.0.0.1:2379"), settings["patienceSeconds"])


if __name__ == "__main__":
    try:
        main()
    except BaseException as e:
        if os.path.exists(CONFIG):
            os.remove(CONFIG)
        say("failed, and took kubeadm's configuration away: " + repr(e))
        sys.exit(1)
