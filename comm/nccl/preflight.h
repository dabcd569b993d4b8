// Would NCCL's init hang or fail? Compares what every rank says about itself before it is tried,
// because NCCL itself waits without end, or ends without a word, on most of what is found here.
//
// Pure. Thread: any.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ivy::comm::nccl {

// A network interface that is up and has an address.
struct Interface {
  std::string name;
  std::string address;
  int prefix_bits = 0;  // Of the network that the address is in; 0: not known.
};

struct RankFacts {
  std::int32_t rank = 0;  // In the world.
  std::string host;       // Its name, in messages.
  std::int32_t pid = 0;
  std::string machine;  // Boot id: equal where devices and /dev/shm are shared.
  std::string
      network;  // Its network namespace: in another one, also of this machine, is another lo.
  // What this rank alone has found wrong, and what to do: no driver, the wrong library ...
  std::string trouble;
  std::string trouble_fix;

  int nccl_version = 0;
  std::string nccl_path;
  int driver_version = 0;
  std::string uuid;  // Of its device.
  std::string bus;
  std::vector<Interface> interfaces;             // In the system's order.
  std::uint16_t probe_port = 0;                  // interface_probe.h; 0: it does not listen.
  std::map<std::string, std::string> variables;  // NCCL_*
  bool shares_devices = false;  // The launcher says that devices are shared on purpose.
  bool has_infiniband = false;
  std::string user;
  bool may_lose_shared_memory = false;        // own_facts.h
  std::uint64_t shared_memory_free = 0;       // Bytes of /dev/shm.
  std::uint64_t locked_memory_limit = ~0ULL;  // ~0: none, also below.
  std::uint64_t stack_limit = 8 << 20;
  std::uint64_t open_files_limit = ~0ULL;
};

struct Finding {
  // Worst first. Devices that ranks share on purpose: NCCL is not used, everything else is well.
  enum class Kind : std::uint8_t { kError, kSharedDevice, kWarning };
  Kind kind = Kind::kError;
  std::int32_t rank = -1;  // Whom it is about, in the world.
  std::string text;        // "rank 3 (node2, pid 77): no driver ..."
  std::string fix;
};

// All that is wrong, worst first. At most kFindingsMax: one cause often shows on every rank.
inline constexpr std::size_t kFindingsMax = 16;
std::vector<Finding> compare_ranks(const std::vector<RankFacts>& ranks);

// Which interface NCCL takes for its sockets, by its own rules: NCCL_SOCKET_IFNAME is a list of
// prefixes; "=" in front wants whole names, "^" everything else; without it names that begin with
// "ib" first, then all others but docker and lo, then docker, then lo.
// Nothing: none fits, and NCCL's init fails or, on some versions, hangs.
std::optional<Interface> choose_interface(const std::vector<Interface>& interfaces,
                                          std::string_view wanted);

// The same by its own variables.
std::optional<Interface> interface_of(const RankFacts& rank);

// Is it one that NCCL itself takes last, since it leads nowhere outside the host?
bool is_inner(const Interface& interface);

// Do both have the same addresses for the same things?
bool is_same_network(const RankFacts& left, const RankFacts& right);
bool spans_networks(const std::vector<RankFacts>& ranks);

// What a rank says that could not connect to where `peer` will listen, and what it comes to.
std::string unreachable_text(const RankFacts& peer, const Interface& interface,
                             const std::string& why);
Finding unreachable_finding(const std::vector<RankFacts>& ranks, const RankFacts& rank,
                            const std::string& text);

// As bytes and back; nothing: not what encode() made.
std::string encode(const RankFacts& facts);
std::optional<RankFacts> decode(const std::string& bytes);

}  // namespace ivy::comm::nccl
