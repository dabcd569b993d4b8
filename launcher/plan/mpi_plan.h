// SPDX-License-Identifier: Apache-2.0
// Determines whether a job's workers are MPI programs, and which of a host's two servers they use,
// from -B mpi or from the libraries that the program names. Pure; thread: any.
#pragma once

#include "launcher/plan/plan_context.h"

namespace ivy {

// Fills in plan.mpi. Rejects a program with two MPI libraries, one whose MPI differs between hosts,
// and one whose workers would each run in a world of one. plan.hosts is final.
void plan_mpi(PlanContext& context);

}  // namespace ivy
