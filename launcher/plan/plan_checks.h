// SPDX-License-Identifier: Apache-2.0
// The checks of a plan that do not concern devices. Pure; thread: any.
#pragma once

#include "launcher/plan/plan_context.h"

namespace ivy {

// Rejects jobs that cannot work (working directory, program, interpreter, script, arguments, ranks
// to show); hosts with the same problem share one rejection. Different versions of the interpreter,
// and some missing ranks to show, only cause warnings. Requires that plan.arguments and plan.hosts
// are final.
void check_plan(PlanContext& context);

// Decides whether the workers can be forked from a process that has imported the modules of
// --preload, and warns if not. Call it after plan_mpi().
void check_preload(PlanContext& context);

}  // namespace ivy
