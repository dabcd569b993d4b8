// SPDX-License-Identifier: Apache-2.0
// Whether a job's workers are MPI programs, and which of the two servers of a host they ask: by -B
// mpi, or by the libraries that the program names. Pure; thread: any.
#pragma once

#include "launcher/plan/plan_context.h"

namespace ivy {

// Fills plan.mpi. Refuses a program of two MPI libraries, one whose MPI differs between hosts, and
// one whose workers would each be a world of one. plan.hosts is final.
void plan_mpi(PlanContext& context);

}  // namespace ivy
