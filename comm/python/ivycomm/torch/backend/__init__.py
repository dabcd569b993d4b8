# SPDX-License-Identifier: Apache-2.0
"""torch.distributed's backend "ivy": init_process_group("ivy"). See docs/torch.md.

torch 2.5 and newer finds it through the entry points of ivycomm_torch_entry.py, next to the package ivycomm;
`import ivycomm.torch` registers it with every torch from 1.13 on. Importing this package does not import torch.
"""
