// SPDX-License-Identifier: Apache-2.0
// ivy-node container DIR: starts the job's container on this host, and removes it when its standard
// input closes. A child of the supervisor (supervisor/host_container.h). Reads DIR/container.order
// (ContainerOrder), writes DIR/container.started (ContainerStarted), and prints lines:
//
//   step\tTEXT            what it waits for: "podman to pull python:3.12"
//   ready                 the container runs, and container.started is complete
//   fail\tREASON\tFIX     there is no container; the last line
//   lost\tREASON          the container has ended by itself; the last line
//
// Waits for its own children and for its standard input at the same time, with a deadline for each
// step except pulling an image, which the launcher's --start-timeout limits.
#pragma once

#include <string>

namespace ivy {

// Files in the job's directory.
std::string container_order_file(const std::string& job_directory);
std::string container_started_file(const std::string& job_directory);

int run_container(int argc, char** argv);

}  // namespace ivy
