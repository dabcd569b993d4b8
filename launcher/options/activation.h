// SPDX-License-Identifier: Apache-2.0
// --activate: the virtual environment that workers run in, as its own `activate` makes it. Asks the
// file system of this host for a conda environment's place. Thread: any.
#pragma once

#include <string>
#include <vector>

#include "proto/contract/env.h"
#include "proto/contract/status.h"

namespace ivy {

struct Activation {
  std::string python;
  Environment set;  // PATH, and VIRTUAL_ENV or CONDA_PREFIX and CONDA_DEFAULT_ENV.
  std::vector<std::string> unset;
};

// `wanted` is a folder of venv or virtualenv, or "conda:NAME", "conda:PREFIX". Scripts that conda
// packages put into activate.d are not run. NotFound names the places that were looked at.
Result<Activation> find_activation(const std::string& wanted, const Environment& caller);

}  // namespace ivy
