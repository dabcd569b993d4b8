// Which rank this process is, and who says so. Pure: takes the environment and the caller's own
// words, returns a value. Thread: any.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "proto/status.h"

namespace ivy::comm {

// How the ranks find each other.
enum class Meeting : std::uint8_t {
  kAlone,  // A world of one.
  kStore,  // The job's store, which ivyrun serves: address, job and token file are known.
};

struct Identity {
  std::string source = "nobody";  // "ivyrun", ...: in messages.
  Meeting meeting = Meeting::kAlone;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  // Equal for ranks that may share memory; empty: by the machine.
  std::string host_key;
  // Are there ranks on other hosts? Nothing listens where all are on one.
  bool spans_hosts = false;
  std::string store_address;
  std::string first_host_address;  // With a port, which means nothing; empty: as store_address.
  std::string job_id;
  std::string token_file;
  std::uint32_t generation = 0;
  std::string control_path;  // Of the supervisor's control socket; empty: none.
};

// What the caller of ivy_init said.
struct IdentityRequest {
  std::string init_method;  // Empty: "env://".
  std::optional<std::uint32_t> rank;
  std::optional<std::uint32_t> world_size;
};

using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;

// FailedPrecondition: two sources disagree (names both), or one is incomplete (names the variable).
Result<Identity> identify(const IdentityRequest& request, const EnvironmentLookup& environment);

}  // namespace ivy::comm
