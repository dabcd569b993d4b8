// A snapshot of an engine's waits and clients (which client waits for what, and since when), and
// the engine's limits. Values only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/wire/store_wire.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

struct Waiting {
  ClientInfo client;
  std::string what;                  // "wait", "barrier 'x' of 8", "queue".
  std::vector<std::string> missing;  // Keys, at most 16; for a barrier: nothing.
  std::size_t missing_count = 0;
  std::vector<std::uint32_t> absent;  // Barrier: members that have not come, at most 16.
  std::uint64_t since_ns = 0;
};
struct Seen {  // A client's last request.
  ClientInfo client;
  std::uint64_t last_ns = 0;
  std::string last_what;  // "set /default_pg/0//cuda//0"
};
struct Picture {
  std::vector<Waiting> waiting;
  std::vector<Seen> clients;
};

// Another client that waits for the same as a leaf's request.
struct Companion {
  ClientId client = 0;
  std::uint64_t since_ns = 0;
};

struct EngineLimits {
  std::size_t store_bytes = kMaxStoreBytes;
  std::size_t keys = kMaxKeys;
  std::size_t waits_per_client = 4096;
  std::size_t watches_per_client = 1024;      // Every write looks at all of them.
  std::size_t watches_per_leaf = 128u << 10;  // Exact ones: found by key.
  // Keys that requests wait for, kept until they are answered.
  std::size_t waiting_bytes_per_client = 64u << 20;
  std::size_t waiting_bytes = 1u << 30;
  std::size_t torch_waiting_bytes = 256u << 20;  // Part of those: torch does not authenticate.
};

}  // namespace ivy::store
