// SPDX-License-Identifier: Apache-2.0
// JAX's part of the workers' sitecustomize (python_hook.h). It makes `jax.distributed.initialize()`
// find this job without arguments: it registers ivyrun's cluster before the others, so that
// variables of an enclosing Slurm job or mpirun are ignored. It adds features that older JAX lacks
// (gloo on the CPU by default, a switch for its preemption service). One rank reports ranks that
// never call initialize(), and different versions of jaxlib, with the help of the job's store.
// Pure; thread: any.
#pragma once

#include <string_view>

namespace ivy {

// Python: defines _arm_jax, and uses _spec_behind.
std::string_view python_hook_jax();

}  // namespace ivy
