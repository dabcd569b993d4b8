// SPDX-License-Identifier: Apache-2.0
// nccl_bootstrap.cc calls compare_ranks() on rank 0. It calls the find_*() functions, each of which
// checks one kind of problem; they are the first half of the file. After them are NCCL's rules for
// interfaces (choose_interface()), and at the end the encoding of facts for the store.
#include "comm/nccl/preflight.h"

#include <algorithm>
#include <set>
#include <sstream>
#include <type_traits>

#include "comm/nccl/library.h"
#include "comm/nccl/subnets.h"
#include "proto/contract/text.h"
#include "proto/contract/text_columns.h"

namespace ivy::comm::nccl {
namespace {

using Ranks = std::vector<RankFacts>;

// Needed in /dev/shm for each rank of a host: NCCL's segments for local connections have some MiB.
constexpr std::uint64_t kSharedMemoryEach = 16ULL << 20;
// With a lower limit, InfiniBand verbs cannot register NCCL's buffers.
constexpr std::uint64_t kLockedMemoryLeast = 64ULL << 20;
// Descriptors for the program's files and the devices, and for the connections of a ring and a tree
// with each rank.
constexpr std::uint64_t kOpenFilesLeast = 64;
constexpr std::uint64_t kOpenFilesEach = 2;
// NCCL 2.31.2 hangs in init if hosts have different numbers of ranks, unless NVLS is off (NCCL's
// issue 2385).
constexpr int kUnevenHangs = 23102;
// Versions that changed the messages that NCCL's bootstrap sends before it compares versions.
constexpr int kBootstrapChanges[] = {22300, 22900};

std::string name_of(const RankFacts& rank) {
  return "rank " + std::to_string(rank.rank) + " (" + rank.host + ", pid " +
         std::to_string(rank.pid) + ")";
}

// Formats a version of CUDA: 13010 becomes "13.1".
std::string cuda_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Finding finding_about(const RankFacts& rank, const std::string& text, const std::string& fix) {
  Finding finding;
  finding.rank = rank.rank;
  finding.text = name_of(rank) + ": " + text;
  finding.fix = fix;
  return finding;
}

std::string variable(const RankFacts& rank, const std::string& name) {
  const auto found = rank.variables.find(name);
  return found != rank.variables.end() ? found->second : "";
}

void find_reported_errors(const Ranks& ranks, std::vector<Finding>& found) {
  for (const RankFacts& rank : ranks) {
    if (!rank.error.empty()) {
      found.push_back(finding_about(rank, rank.error, rank.error_fix));
    }
  }
}

// Returns the value that most ranks have. The first rank's value wins if no other is more frequent.
template <class Key>
auto most_frequent(const Ranks& ranks, Key key) {
  std::map<decltype(key(ranks[0])), std::size_t> counts;
  for (const RankFacts& rank : ranks) ++counts[key(rank)];
  auto best = key(ranks[0]);
  for (const auto& [value, count] : counts) {
    if (count > counts[best]) best = value;
  }
  return best;
}

// Returns the generation of the bootstrap's messages; ranks of different generations hang.
int bootstrap_of(int version) {
  int generation = 0;
  for (const int change : kBootstrapChanges) generation += version >= change ? 1 : 0;
  return generation;
}

void find_version_skew(const Ranks& ranks, std::vector<Finding>& found) {
  const auto version_of = [](const RankFacts& rank) { return rank.nccl_version; };
  const int usual = most_frequent(ranks, version_of);
  const auto other = std::find_if(ranks.begin(), ranks.end(), [&](const RankFacts& rank) {
    return rank.nccl_version == usual;
  });
  for (const RankFacts& rank : ranks) {
    if (rank.nccl_version == usual || rank.nccl_version == 0 || usual == 0) continue;
    std::string text = "has NCCL " + version_text(rank.nccl_version) + " (" + rank.nccl_path +
                       "), but " + name_of(*other) + " has " + version_text(usual) + " (" +
                       other->nccl_path + ")";
    if (bootstrap_of(rank.nccl_version) != bootstrap_of(usual)) {
      text += ", whose bootstrap uses a different protocol: init would hang";
    }
    found.push_back(finding_about(
        rank, text, "install one version on all hosts, or set IVY_NCCL_LIB to the same one"));
  }
}

// Only warns, because NCCL accepts different drivers: it compares just its own versions, and uses
// only features that all drivers have.
void find_driver_skew(const Ranks& ranks, std::vector<Finding>& found) {
  const auto version_of = [](const RankFacts& rank) { return rank.driver_version; };
  const int usual = most_frequent(ranks, version_of);
  for (const RankFacts& rank : ranks) {
    if (rank.driver_version == usual) continue;
    found.push_back(finding_about(
        rank,
        "has a driver for CUDA " + cuda_text(rank.driver_version) + ", but others have one for " +
            cuda_text(usual),
        "harmless by itself; if something fails there, install the same driver on all hosts"));
    found.back().kind = Finding::Kind::kWarning;
  }
}

// Returns true if NCCL accepts ranks that share a device, because a variable allows it or makes
// NCCL take them for ranks of different hosts.
bool may_share(const std::vector<const RankFacts*>& sharing) {
  bool is_allowed = true;
  std::set<std::string> host_ids;
  for (const RankFacts* rank : sharing) {
    is_allowed = is_allowed && rank->nccl_version >= kMultiRank &&
                 variable(*rank, "NCCL_MULTI_RANK_GPU_ENABLE") == "1";
    const std::string id = variable(*rank, "NCCL_HOSTID");
    if (!id.empty()) host_ids.insert(id);
  }
  return is_allowed || host_ids.size() == sharing.size();
}

void find_shared_devices(const Ranks& ranks, std::vector<Finding>& found) {
  std::map<std::string, std::vector<const RankFacts*>> by_device;
  for (const RankFacts& rank : ranks) {
    if (!rank.uuid.empty()) by_device[rank.uuid].push_back(&rank);
  }
  for (const auto& [uuid, sharing] : by_device) {
    if (sharing.size() < 2 || may_share(sharing)) continue;
    const RankFacts& first = *sharing[0];
    std::string others;
    for (std::size_t i = 1; i < sharing.size() && i < 4; ++i) {
      others += (i > 1 ? ", " : "") + name_of(*sharing[i]);
    }
    if (sharing.size() > 4) others += " and " + std::to_string(sharing.size() - 4) + " more";
    const bool is_new = std::all_of(sharing.begin(), sharing.end(), [](const RankFacts* rank) {
      return rank->nccl_version >= kMultiRank;
    });
    Finding finding = finding_about(
        first, "uses the same GPU " + first.bus + " as " + others,
        std::string("choose the device by the local rank; to share it deliberately, set ") +
            (is_new ? "NCCL_MULTI_RANK_GPU_ENABLE=1"
                    : "NCCL_HOSTID to a different value on each rank (NCCL 2.30 has "
                      "NCCL_MULTI_RANK_GPU_ENABLE for this)"));
    if (std::all_of(sharing.begin(), sharing.end(),
                    [](const RankFacts* rank) { return rank->shares_devices; })) {
      finding.kind = Finding::Kind::kSharedDevice;
    }
    found.push_back(std::move(finding));
  }
}

bool has_outer(const std::vector<Interface>& interfaces) {
  return !std::all_of(interfaces.begin(), interfaces.end(), is_inner);
}

// Lists the interfaces from which a user may choose. Lists those that lead nowhere outside the host
// only if there are no others.
std::string names_of(const std::vector<Interface>& interfaces) {
  const bool has_others = has_outer(interfaces);
  std::string names;
  for (const Interface& one : interfaces) {
    if (!has_others || !is_inner(one)) names += (names.empty() ? "" : ", ") + one.name;
  }
  return names.empty() ? "none" : names;
}

bool spans_machines(const Ranks& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const RankFacts& rank) { return rank.machine != ranks[0].machine; });
}

void find_interfaces(const Ranks& ranks, std::vector<Finding>& found) {
  for (const RankFacts& rank : ranks) {
    const std::string wanted = variable(rank, "NCCL_SOCKET_IFNAME");
    const std::optional<Interface> chosen = interface_of(rank);
    if (!chosen) {
      found.push_back(finding_about(
          rank,
          wanted.empty() ? "has no network interface that NCCL can use"
                         : "NCCL_SOCKET_IFNAME=" + wanted +
                               " matches no interface of its host that is up and has an address",
          wanted.empty()
              ? "list them with `ip address`; one must be up and have an address"
              : "unset it, or set NCCL_SOCKET_IFNAME to one of: " + names_of(rank.interfaces)));
    } else if (spans_networks(ranks) && is_inner(*chosen)) {
      found.push_back(
          finding_about(rank,
                        "NCCL chooses interface " + chosen->name + " (" + chosen->address +
                            "), which other hosts cannot reach",
                        has_outer(rank.interfaces)
                            ? "set NCCL_SOCKET_IFNAME to one of: " + names_of(rank.interfaces)
                            : "its host has no other interface that is up and has an address"));
    }
  }
}

// Returns true if a variable may differ between ranks without harm.
bool may_differ_between_ranks(std::string_view name) {
  for (const std::string_view prefix :
       {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_HOSTID", "NCCL_DEBUG", "NCCL_TOPO_",
        "NCCL_GRAPH_DUMP", "NCCL_PROFILER", "NCCL_RAS_", "NCCL_CONF_FILE", "NCCL_LIB", "NCCL_ROOT",
        "NCCL_HOME", "NCCL_VERSION", "NCCL_INCLUDE", "NCCL_DOUBLE"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

void find_divergence(const Ranks& ranks, std::vector<Finding>& found) {
  std::set<std::string> names;
  for (const RankFacts& rank : ranks) {
    for (const auto& [name, value] : rank.variables) {
      if (!may_differ_between_ranks(name)) names.insert(name);
    }
  }
  for (const std::string& name : names) {
    const auto value_of = [&](const RankFacts& rank) { return variable(rank, name); };
    const std::string usual = most_frequent(ranks, value_of);
    for (const RankFacts& rank : ranks) {
      const std::string value = value_of(rank);
      if (value == usual) continue;
      const auto setting = [&](const std::string& text) {
        return text.empty() ? name + " unset" : name + "=" + text;
      };
      found.push_back(finding_about(rank,
                                    "has " + setting(value) + ", but others have " + setting(usual),
                                    "set the same value on all ranks (ivyrun -x " + name + ")"));
      break;  // One rank is enough to show it.
    }
  }
}

void warn_about(const RankFacts& rank, const std::string& text, const std::string& fix,
                std::vector<Finding>& found) {
  found.push_back(finding_about(rank, text, fix));
  found.back().kind = Finding::Kind::kWarning;
}

// Reports problems with /dev/shm once per machine.
void find_shared_memory(const Ranks& ranks, std::vector<Finding>& found) {
  std::map<std::string, std::uint64_t> on_machine;
  for (const RankFacts& rank : ranks) ++on_machine[rank.machine];
  std::set<std::string> reported;
  for (const RankFacts& rank : ranks) {
    const std::uint64_t neighbours = on_machine[rank.machine];
    const std::uint64_t needed = neighbours * kSharedMemoryEach;
    const std::uint64_t free = rank.limits.shared_memory_free;
    if (neighbours > 1 && free < needed && reported.insert(rank.machine).second) {
      found.push_back(finding_about(rank,
                                    "/dev/shm has " + mebibytes(free) + " free, " +
                                        std::to_string(neighbours) + " ranks need " +
                                        mebibytes(needed),
                                    "free some space in it or make it larger: mount -o "
                                    "remount,size=1G /dev/shm (in a container: "
                                    "--shm-size=1g or --ipc=host)"));
    }
    if (neighbours > 1 && rank.limits.may_have_shared_memory_removed &&
        reported.insert("ipc" + rank.machine).second) {
      warn_about(
          rank,
          "does not run in a login session of user " + rank.user +
              ": when that user's last session ends, systemd removes NCCL's files in /dev/shm",
          "loginctl enable-linger " + rank.user + ", or RemoveIPC=no in /etc/systemd/logind.conf",
          found);
    }
  }
}

void find_limits(const Ranks& ranks, std::vector<Finding>& found) {
  const std::uint64_t files = kOpenFilesLeast + kOpenFilesEach * ranks.size();
  for (const RankFacts& rank : ranks) {
    if (rank.has_infiniband && spans_machines(ranks) && variable(rank, "NCCL_IB_DISABLE") != "1" &&
        rank.limits.locked_memory < kLockedMemoryLeast) {
      found.push_back(finding_about(
          rank,
          "may lock only " + std::to_string(rank.limits.locked_memory >> 10) +
              " KiB of memory, too little for InfiniBand",
          "raise it: ulimit -l unlimited (in a systemd unit: LimitMEMLOCK=infinity; in a "
          "container: --ulimit memlock=-1)"));
    }
    if (rank.limits.open_files < files) {
      found.push_back(finding_about(
          rank,
          "may open only " + std::to_string(rank.limits.open_files) +
              " files, and connections of " + std::to_string(ranks.size()) + " ranks need about " +
              std::to_string(files),
          "raise it: ulimit -n 65536 (in a systemd unit: LimitNOFILE=65536; in a container: "
          "--ulimit nofile=65536)"));
    }
    if (rank.limits.stack == ~0ULL) {
      warn_about(rank, "its stack limit is unlimited, which gives NCCL's threads stacks of 2 MiB",
                 "run ulimit -s 8192 before the job", found);
    }
  }
}

// Warns about a known defect of one version of NCCL.
void find_known_defects(const Ranks& ranks, std::vector<Finding>& found) {
  std::map<std::string, std::vector<const RankFacts*>> by_machine;
  for (const RankFacts& rank : ranks) by_machine[rank.machine].push_back(&rank);
  const std::size_t usual = by_machine.begin()->second.size();
  for (const auto& [machine, members] : by_machine) {
    const RankFacts& rank = *members.front();
    if (members.size() == usual || rank.nccl_version != kUnevenHangs) continue;
    if (variable(rank, "NCCL_NVLS_ENABLE") == "0") continue;
    found.push_back(finding_about(rank,
                                  "NCCL " + version_text(rank.nccl_version) +
                                      " is known to hang if hosts have different "
                                      "numbers of ranks (" +
                                      std::to_string(members.size()) + " here, " +
                                      std::to_string(usual) + " on " +
                                      by_machine.begin()->second.front()->host + ")",
                                  "set NCCL_NVLS_ENABLE=0 on all ranks, or use another version"));
    found.back().kind = Finding::Kind::kWarning;
    return;
  }
}

}  // namespace

std::optional<Interface> choose_interface(const std::vector<Interface>& interfaces,
                                          std::string_view wanted) {
  const auto first_of = [&](std::string_view list) -> std::optional<Interface> {
    const bool is_not = list.starts_with('^');
    if (is_not) list.remove_prefix(1);
    const bool is_exact = list.starts_with('=');
    if (is_exact) list.remove_prefix(1);
    for (const Interface& one : interfaces) {
      bool is_listed = false;
      for (std::string_view left = list; !left.empty();) {
        const std::string_view name = take_part(left, ',');
        is_listed = is_listed || (is_exact ? one.name == name : one.name.starts_with(name));
      }
      if (is_listed != is_not) return one;
    }
    return std::nullopt;
  };
  if (!wanted.empty()) return first_of(wanted);
  for (const std::string_view list : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"}) {
    if (std::optional<Interface> found = first_of(list)) return found;
  }
  return std::nullopt;
}

std::optional<Interface> interface_of(const RankFacts& rank) {
  return choose_interface(rank.interfaces, variable(rank, "NCCL_SOCKET_IFNAME"));
}

bool is_same_network(const RankFacts& left, const RankFacts& right) {
  return left.machine == right.machine && left.network == right.network;
}

bool spans_networks(const std::vector<RankFacts>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const RankFacts& rank) { return !is_same_network(rank, ranks[0]); });
}

std::string unreachable_text(const RankFacts& peer, const Interface& interface,
                             const std::string& why) {
  return "cannot reach " + interface.address + " (" + interface.name + "), on which NCCL of " +
         name_of(peer) + " will listen: " + why;
}

Finding unreachable_finding(const std::vector<RankFacts>& ranks, const RankFacts& rank,
                            const std::string& text) {
  std::string choice;
  for (const CommonSubnet& one : common_subnets(ranks)) {
    std::string names;
    for (const std::string& name : one.names) names += (names.empty() ? "=" : ",") + name;
    choice += (choice.empty() ? "" : " or ") + names + " (" + one.subnet + ")";
  }
  if (!choice.empty()) {
    return finding_about(
        rank, text,
        "set NCCL_SOCKET_IFNAME" + choice +
            ", in which all hosts have an address, or open the firewall between them");
  }
  return finding_about(
      rank, text,
      "the hosts have no network in common: add routes between their networks, or set "
      "NCCL_SOCKET_IFNAME to an interface that the others can reach (" +
          names_of(rank.interfaces) + ")");
}

std::vector<Finding> compare_ranks(const std::vector<RankFacts>& ranks) {
  std::vector<Finding> found;
  if (ranks.empty()) return found;
  find_reported_errors(ranks, found);
  // A rank without driver or library has no further facts, so comparing them would only add noise.
  if (found.empty()) {
    find_version_skew(ranks, found);
    find_driver_skew(ranks, found);
    find_shared_devices(ranks, found);
    find_shared_memory(ranks, found);
    find_limits(ranks, found);
    find_known_defects(ranks, found);
    find_interfaces(ranks, found);
    find_divergence(ranks, found);
  }
  std::stable_sort(found.begin(), found.end(), [](const Finding& left, const Finding& right) {
    return left.kind < right.kind;
  });
  if (found.size() > kFindingsMax) found.resize(kFindingsMax);
  return found;
}

namespace {

// Writes lines "name value". Newlines and backslashes in a value are escaped.
class Lines {
 public:
  void add(std::string_view name, std::string_view value) {
    text_ += std::string(name) + " ";
    for (const char c : value) {
      if (c == '\n') {
        text_ += "\\n";
      } else if (c == '\\') {
        text_ += "\\\\";
      } else {
        text_ += c;
      }
    }
    text_ += '\n';
  }
  void add(std::string_view name, std::uint64_t value) { add(name, std::to_string(value)); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

std::string unescaped(std::string_view value) {
  std::string text;
  for (std::size_t i = 0; i < value.size(); ++i) {
    const bool is_escape = value[i] == '\\' && i + 1 < value.size();
    if (is_escape) ++i;
    text += is_escape && value[i] == 'n' ? '\n' : value[i];
  }
  return text;
}

// Cuts "name=value" at the first '='.
std::pair<std::string, std::string> cut(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return {text, ""};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

// Reads one interface in the form of encode(): "eth0=10.77.0.3/24".
bool read_interface(const std::string& text, RankFacts& facts) {
  const auto [name, address] = cut(text);
  const std::size_t slash = address.rfind('/');
  Interface interface = {name, address.substr(0, slash)};
  if (slash == std::string::npos || !read_number(address.substr(slash + 1), interface.prefix_bits))
    return false;
  facts.interfaces.push_back(std::move(interface));
  return true;
}

// Visits every field except the lists, with its name in the text.
template <class Facts, class Visit>
void visit_fields(Facts& facts, Visit visit) {
  visit("rank", facts.rank);
  visit("host", facts.host);
  visit("pid", facts.pid);
  visit("machine", facts.machine);
  visit("network", facts.network);
  visit("probe_port", facts.probe_port);
  visit("trouble", facts.error);
  visit("fix", facts.error_fix);
  visit("nccl_version", facts.nccl_version);
  visit("nccl_path", facts.nccl_path);
  visit("driver_version", facts.driver_version);
  visit("uuid", facts.uuid);
  visit("bus", facts.bus);
  visit("parent", facts.parent);
  visit("shares", facts.shares_devices);
  visit("user", facts.user);
  visit("loses_shm", facts.limits.may_have_shared_memory_removed);
  visit("infiniband", facts.has_infiniband);
  visit("shm", facts.limits.shared_memory_free);
  visit("memlock", facts.limits.locked_memory);
  visit("stack", facts.limits.stack);
  visit("open_files", facts.limits.open_files);
}

// Returns false for an invalid value. Ignores unknown fields, which a newer version may have.
bool read_field(const std::string& name, const std::string& value, RankFacts& facts) {
  if (name == "interface") return read_interface(value, facts);
  if (name == "variable") facts.variables.insert(cut(value));
  bool is_read = true;
  visit_fields(facts, [&](std::string_view field, auto& out) {
    using Value = std::remove_reference_t<decltype(out)>;
    if (field != name) return;
    if constexpr (std::is_same_v<Value, std::string>) {
      out = value;
    } else if constexpr (std::is_same_v<Value, bool>) {
      out = value == "1";
    } else {
      is_read = read_number(value, out);
    }
  });
  return is_read;
}

}  // namespace

std::string encode(const RankFacts& facts) {
  Lines lines;
  visit_fields(facts, [&](std::string_view field, const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, std::string>) {
      lines.add(field, value);
    } else {
      lines.add(field, static_cast<std::uint64_t>(value));
    }
  });
  for (const Interface& one : facts.interfaces) {
    lines.add("interface", one.name + "=" + one.address + "/" + std::to_string(one.prefix_bits));
  }
  for (const auto& [name, value] : facts.variables) lines.add("variable", name + "=" + value);
  return lines.text();
}

std::optional<RankFacts> decode(const std::string& bytes) {
  RankFacts facts;
  std::istringstream lines(bytes);
  std::string line;
  bool has_rank = false;
  while (std::getline(lines, line)) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return std::nullopt;
    const std::string name = line.substr(0, space);
    if (!read_field(name, unescaped(std::string_view(line).substr(space + 1)), facts)) {
      return std::nullopt;
    }
    has_rank = has_rank || name == "rank";
  }
  if (!has_rank) return std::nullopt;
  return facts;
}

}  // namespace ivy::comm::nccl
