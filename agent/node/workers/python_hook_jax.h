// JAX's part of the workers' sitecustomize (python_hook.h). It makes `jax.distributed.initialize()`
// find this job without arguments: ivyrun's own cluster stands before those that JAX knows, so that
// words of an outer Slurm job or mpirun do not count. What older JAX lacks (gloo on the CPU by
// default, a switch for its preemption service) is added to it. A rank that never calls
// initialize(), and versions of jaxlib that differ, are said by one rank; they meet in the job's
// store. Pure; thread: any.
#pragma once

#include <string_view>

namespace ivy {

// Python: defines _arm_jax, and uses _spec_behind.
std::string_view python_hook_jax();

}  // namespace ivy
