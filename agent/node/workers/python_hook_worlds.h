// SPDX-License-Identifier: Apache-2.0
// The part of the workers' sitecustomize (python_hook.h) for frameworks that would start as worlds
// of one without a word, or count ranks in another way than the job: accelerate, TensorFlow, Dask,
// Ray, torch and Horovod get one warning for all ranks, and XGBoost finds the tracker of
// --app xgboost without arguments. Pure; thread: any.
#pragma once

#include <string_view>

namespace ivy {

// Python: defines _arm_worlds, and uses _Jax and _JaxMeeting.
std::string_view python_hook_worlds();

}  // namespace ivy
