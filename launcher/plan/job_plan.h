// SPDX-License-Identifier: Apache-2.0
// The result of planning (plan.h): which ranks run where; and the hosts' answers before it. Values
// only.
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

// One host: how it was reached, and the facts that it reported.
struct HostAnswer {
  bool is_here = true;  // Else it takes no part (--nnodes MIN:MAX), and only has its name.
  std::string name;     // Label of the host in every message.
  Transport transport = Transport::kLocal;
  std::string peer_address;   // Numeric address by which the launcher reached it; empty for local.
  std::string local_address;  // Our own address on that connection; empty for local.
  HostFacts facts;
};

struct PlannedWorker {
  int rank = 0;
  int local_rank = 0;
  // device_plan.h fills the two that follow.
  std::vector<int> devices = {};        // Its accelerators: indices into PlannedHost::devices.
  CoreList cores = {};                  // It runs on these alone; empty: wherever its host may.
  int sharers = 1;                      // Workers that run on the same cores, with itself.
  std::optional<int> memory_node = {};  // NUMA node whose memory it prefers.
};

struct PlannedHost {
  std::string name;
  Transport transport = Transport::kLocal;
  int node_rank = 0;
  std::vector<PlannedWorker> workers;  // At least one; hosts without workers are not in the plan.
  std::size_t host_index = 0;          // Index into Options::hosts and the answers.
  // Its accelerators: indices into HostFacts::devices. A pretended host has a part of its
  // machine's.
  std::vector<int> devices;
  bool has_part_of_devices = false;  // A part, or all in another order than its masks have.
  bool sees_own = false;             // Each of its workers sees its own accelerators alone.
  bool shares_devices = false;       // Workers use the same accelerator.
};

// How the workers get their MPI world (mpi_plan.h).
struct MpiChoice {
  bool served = false;    // Hosts run MPI servers, for workers that connect on their own.
  bool pmi = false;       // Every worker gets a place in the world of PMI-1...
  bool pmix = false;      // ...and of PMIx before it begins.
  bool required = false;  // -B mpi: a worker that never calls MPI_Init has failed.
};

struct JobPlan {
  std::string job_id;
  std::vector<PlannedHost> hosts;
  int world_size = 0;
  std::string master_address;  // Numeric, exactly as given to workers.
  std::uint16_t master_port = 0;
  std::uint16_t coordinator_port = 0;  // Reserved for what other frameworks open in rank 0.
  std::uint16_t store_port = 0;        // Port of the store's native dialect; 0: no store.
  std::string program;                 // The program's name as messages show it.
  std::vector<std::string> arguments;
  std::string rule;  // The rule that decided the number of workers, for the plan line.
  MapChoice map_by = MapChoice::kHost;
  std::string device_words;  // About accelerators and cores, for the same line; often empty.
  std::vector<Diagnostic> warnings;
  MpiChoice mpi;
  bool same_local_size = true;  // Every host has the same number of workers.

  const PlannedHost& host_of_rank(int rank) const;
};

}  // namespace ivy
