// SPDX-License-Identifier: Apache-2.0
// PMI-1's server for the ranks of one host: the requests of MPICH, Intel MPI and MVAPICH in
// MPI_Init and MPI_Finalize. Bytes of connections in; replies, events and fences out. Pure. Not
// thread-safe.
//
//   connection:  opened ──"rank R"──▶ bound ──cmd=init──▶ joined ──cmd=finalize──▶ left
//                                                            └──cmd=abort──▶ aborted
//
// A library that connects on its own sends cmd=initack instead of "rank R". A rank that has joined
// and whose connection closes before it has left has vanished. Pairs that a rank has put become
// visible to all ranks after the next barrier: when all ranks of this host have reached the
// barrier, this host starts a fence with the new pairs, and the fence's result releases the ranks.
//
// Unsupported requests get an answer that makes the client report the missing feature: spawn and
// names get rc=-1, PMI-2 an error that ends the job.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/dialects/pmi_lines.h"

namespace ivy::store {

// Limit of the bytes of all pairs that one host's ranks may put, names included.
inline constexpr std::size_t kMaxPmiPairs = 4u << 20;
// MPICH's own limits, which the server announces.
inline constexpr std::size_t kMaxPmiKey = 64;
inline constexpr std::size_t kMaxPmiValue = 1024;
// A longer process mapping does not fit into MPICH's line; MPICH then determines the mapping
// itself.
inline constexpr std::size_t kMaxPmiMapping = 640;

struct PmiJob {
  std::string name;  // Unique for each job and generation; without blanks.
  std::uint32_t host = 0;
  std::vector<std::uint32_t> ranks_on_hosts;
};

// Returns, for example, "(vector,(0,2,2),(2,1,1))" for 2, 2 and 1 ranks on three hosts. Each block
// has the first host, the number of hosts, and the ranks on each.
std::string process_mapping(const std::vector<std::uint32_t>& ranks_on_hosts);

class PmiHost {
 public:
  using Connection = std::uint64_t;
  struct Bytes {
    Connection to = 0;
    std::string bytes;
  };
  // Actions to take, in this order.
  struct Effects {
    std::vector<std::string> events;  // Lines for the supervisor, without line ends.
    std::vector<std::string> notes;   // Lines for the user.
    std::vector<Bytes> replies;
    std::vector<Connection> closed;  // To be closed after their replies.
    // If set, start a fence with this data; call fenced() with the data of all hosts.
    std::optional<std::string> fence;
  };

  explicit PmiHost(PmiJob job);

  void opened(Connection connection) { connections_[connection]; }
  void received(Connection connection, std::string_view bytes, Effects& effects);
  // Call when the peer has closed the connection.
  void ended(Connection connection, Effects& effects);
  void fenced(const std::vector<std::string>& blobs, Effects& effects);

 private:
  enum class State { kOpened, kBound, kJoined, kLeft, kAborted };
  struct Rank {
    Connection connection = 0;
    State state = State::kOpened;
    PmiReader reader;
    std::uint32_t rank = 0;
  };
  using Handler = void (PmiHost::*)(Rank&, const PmiRequest&, Effects&);
  static const std::map<std::string_view, Handler>& handlers();

  // Returns false if the first line is incomplete or was rejected.
  bool bind(Rank& rank, Effects& effects);
  void serve(Rank& rank, const PmiRequest& request, Effects& effects);
  void reject(Rank& rank, const std::string& why, Effects& effects);
  void reply(const Rank& rank, const std::string& text, Effects& effects) const;

  void init(Rank& rank, const PmiRequest& request, Effects& effects);
  void init_port(Rank& rank, const PmiRequest& request, Effects& effects);
  void get_maxes(Rank& rank, const PmiRequest& request, Effects& effects);
  void get_appnum(Rank& rank, const PmiRequest& request, Effects& effects);
  void get_name(Rank& rank, const PmiRequest& request, Effects& effects);
  void get_universe(Rank& rank, const PmiRequest& request, Effects& effects);
  void put(Rank& rank, const PmiRequest& request, Effects& effects);
  void get(Rank& rank, const PmiRequest& request, Effects& effects);
  void barrier(Rank& rank, const PmiRequest& request, Effects& effects);
  void spawn(Rank& rank, const PmiRequest& request, Effects& effects);
  void finalize(Rank& rank, const PmiRequest& request, Effects& effects);
  void abort(Rank& rank, const PmiRequest& request, Effects& effects);

  std::uint32_t local_size() const { return job_.ranks_on_hosts[job_.host]; }
  std::uint32_t first_rank() const;
  std::uint32_t world_size() const;

  const PmiJob job_;
  std::map<Connection, Rank> connections_;
  std::set<std::uint32_t> bound_;             // Ranks that have a connection.
  std::map<std::string, std::string> pairs_;  // Visible to all ranks.
  std::map<std::string, std::string> fresh_;  // Put by this host's ranks since the last barrier.
  std::size_t pair_bytes_ = 0;                // Total put by this host so far.
  std::set<Connection> waiting_;              // Connections in the barrier.
};

}  // namespace ivy::store
