"""The daemon against a real control plane: etcd, kube-apiserver, scheduler, controller-manager.

``python -m tests.live.programs`` builds the programs from their Go modules (about half an hour on
two cores, once); ``pytest -m live tests/live`` runs the scenarios. EC2 is moto, the kubelets are
imitated.
"""
