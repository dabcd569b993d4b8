// SPDX-License-Identifier: Apache-2.0
// --activate: the virtual environment in which workers run, with the same variables as its
// `activate` script sets. Searches this host's file system for a conda environment. Thread: any.
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

// `wanted` is a folder created by venv or virtualenv, or "conda:NAME" or "conda:PREFIX". Scripts
// that conda packages put into activate.d are not run. The message of NotFound lists the searched
// locations.
Result<Activation> find_activation(const std::string& wanted, const Environment& caller);

}  // namespace ivy
