"""Machines that logs come from and that are no presets."""

POLARIS = """
# Polaris as its NUMA nodes are set: a root complex per GPU, adapters next to GPU 1 and GPU 3.
gdr_level: phb
nodes:
  gpu0..3: {kind: gpu, chip: a100-sxm4-40gb}
  nic0..1: {kind: nic, nic: cassini-200g}
  cpu0..3: {kind: switch, switch: epyc-milan}
links:
  - {from: gpu0, to: gpu1..3, count: 4, type: nvlink3}
  - {from: gpu1, to: gpu2..3, count: 4, type: nvlink3}
  - {from: gpu2, to: gpu3, count: 4, type: nvlink3}
  - {from: gpu0..3, to: cpu0..3, pair: zip, type: pcie-gen4-x16-gpu}
  - {from: nic0, to: cpu1, type: pcie-gen4-x16}
  - {from: nic1, to: cpu3, type: pcie-gen4-x16}
  - {from: cpu0, to: cpu1..3, type: xgmi2}
  - {from: cpu1, to: cpu2..3, type: xgmi2}
  - {from: cpu2, to: cpu3, type: xgmi2}
network: {kind: dragonfly, link: slingshot-200, switch: rosetta}
"""

TWO_SOCKETS = """
# Two GPUs on the two sockets of an AMD server.
nodes:
  gpu0..1: {kind: gpu, chip: a100-pcie-40gb}
  cpu0..1: {kind: switch, switch: epyc-rome}
links:
  - {from: gpu0..1, to: cpu0..1, pair: zip, type: pcie-gen4-x16-gpu}
  - {from: cpu0, to: cpu1, type: xgmi2}
"""
