// SPDX-License-Identifier: Apache-2.0
// The container runtimes that --container can use, one row each: their commands as templates, and
// the meaning of their error messages. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "proto/contract/status.h"
#include "proto/wire/job.pb.h"

namespace ivy {

using CommandWords = std::vector<std::string>;

// The host's part of a container.
struct ContainerSetting {
  Container wanted;
  std::string name;                    // "ivy-0123456789ab-0"
  std::string node;                    // The path of ivy-node, on the host and in the container.
  std::string socket;                  // The process in the container connects to it.
  std::string image_file;              // Where Enroot stores an imported image.
  std::vector<ContainerMount> mounts;  // ivyrun's own mounts; wanted.mounts() are added.
  unsigned user = 0;
  unsigned group = 0;
  bool has_nvidia = false;
  bool has_amd = false;
  bool has_infiniband = false;
};

// The commands for one container, in this order. Empty ones are not needed.
struct ContainerCommands {
  CommandWords has_image;  // Succeeds if the host has the image.
  CommandWords get_image;
  CommandWords create;
  CommandWords run;     // Runs until the process in the container exits.
  CommandWords remove;  // Removes whatever is left of the container. May find nothing.
};

// Returns the runtimes' names, which are also their programs, in the order of preference.
std::vector<std::string> container_runtimes();

// Returns the runtime of an image that only one of them can read: "apptainer" for a .sif file,
// "enroot" for a .sqsh file. Empty for any other image.
std::string runtime_of_image(std::string_view image);

// `runtime` is one of container_runtimes().
ContainerCommands container_commands(const std::string& runtime, const ContainerSetting& setting);

// Returns advice for an error that the runtime has printed, or an empty text.
std::string container_advice(const std::string& runtime, std::string_view printed);

}  // namespace ivy
