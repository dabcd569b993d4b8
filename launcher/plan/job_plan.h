// SPDX-License-Identifier: Apache-2.0
// The result of planning (plan.h), which assigns ranks to hosts, and the hosts' answers that it
// needs. Values only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/options/option_types.h"
#include "launcher/options/transport_kind.h"
#include "launcher/report/diagnostic.h"
#include "proto/contract/core_list.h"
#include "proto/wire/job.pb.h"

namespace ivy {

// --stage-venv: the workers' Python environment on a host to which it was sent.
struct HostEnvironment {
  std::string directory;
  bool is_conda = false;
  std::vector<std::string> imports;  // For PYTHONPATH: directories of editable installs.
};

// The connection to one host, and the facts that it reported.
struct HostAnswer {
  bool is_present = true;  // If false, it takes no part (--nnodes MIN:MAX): only `name` is set.
  std::string name;        // Label of the host in every message.
  Transport transport = Transport::kLocal;
  std::string peer_address;   // Numeric address to which the launcher connected; empty for local.
  std::string local_address;  // Our address on that connection; empty for local.
  HostFacts facts;
  std::optional<HostEnvironment> environment = std::nullopt;
  // With spares, each node rank keeps its number of workers: a spare that takes one over must run
  // as many as the host before it. Not set in a job without spares.
  std::optional<int> workers = std::nullopt;
};

struct PlannedWorker {
  int rank = 0;
  int local_rank = 0;
  // device_plan.h sets the rest.
  std::vector<int> devices = {};  // Its accelerators: indices into PlannedHost::devices.
  CoreList cores = {};            // It runs only on these; empty means all of its host's cores.
  int sharers = 1;                // Workers that run on the same cores, including this one.
  std::optional<int> memory_node = {};  // NUMA node whose memory it prefers.
};

struct PlannedHost {
  std::string name;
  Transport transport = Transport::kLocal;
  int node_rank = 0;
  std::vector<PlannedWorker> workers;  // At least one; hosts without workers are not in the plan.
  std::size_t host_index = 0;          // Index into Options::hosts and the answers.
  // Its accelerators: indices into HostFacts::devices. A simulated host has only some of its
  // machine's.
  std::vector<int> devices;
  bool has_part_of_devices = false;  // `devices` lacks some of the facts', or reorders them.
  bool sees_own = false;             // Each worker sees only its own accelerators.
  bool shares_devices = false;       // Several workers use the same accelerator.
};

// How the workers get their place in an MPI world (mpi_plan.h).
struct MpiChoice {
  bool served = false;    // Hosts run MPI servers for workers that connect on their own.
  bool pmi = false;       // Every worker gets a place in PMI-1's world before its program starts.
  bool pmix = false;      // Every worker gets a place in PMIx's world before its program starts.
  bool required = false;  // -B mpi: a worker that never calls MPI_Init counts as failed.
};

struct JobPlan {
  std::string job_id;
  std::vector<PlannedHost> hosts;
  int world_size = 0;
  std::string master_address;  // Numeric, exactly as passed to workers.
  std::uint16_t master_port = 0;
  std::uint16_t coordinator_port = 0;  // Reserved for the server of other frameworks in rank 0.
  std::uint16_t store_port = 0;  // Port of the store's native dialect; 0 if there is no store.
  std::string program;           // The program's name as shown in messages.
  std::vector<std::string> arguments;
  std::string rule;  // The rule that decided the number of workers, for the plan line.
  MapChoice map_by = MapChoice::kHost;
  bool preloads = false;       // Workers are forked from a process with the modules of --preload.
  std::string container_text;  // For the plan line: the containers. Often empty.
  std::string device_text;     // For the plan line: accelerators and cores. Often empty.
  std::vector<Diagnostic> warnings;
  // For the plan line: hosts without workers that may replace others.
  std::vector<std::string> spares;
  MpiChoice mpi;
  bool same_local_size = true;  // Every host has the same number of workers.

  const PlannedHost& host_of_rank(int rank) const;
};

}  // namespace ivy
