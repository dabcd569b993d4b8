// Equal requests of a leaf's clients for one key, for its present value or to wait for it, that
// went up to the store as one.
//
// `members` were there when the request left, so its answer is theirs. `joiners` came later, when
// the answer may have been under way: they share it only if the value may be kept; otherwise they
// are the members of the next request. So no answer is older than its request, whether or not it
// was shared. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/dialects/upstream.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

class SharedRequests {
 public:
  enum class Question : char { kExists = 'w', kValue = 'g', kValueNow = 'n' };
  struct Member {
    Asker asker;
    std::uint64_t deadline_ns = kNever;
    std::uint64_t since_ns = 0;
  };

  struct Answer {
    const ReplyBody& body;
    bool is_kept;  // Its value may be kept: whoever came later may share it.
  };

  explicit SharedRequests(Upstream& upstream) : upstream_(upstream) {}

  // Joins the request that asks this, or sends one.
  void ask(Question question, Space space, const std::string& key, const Member& member);
  // Hands out an answer of the store. Requests that may not share it are sent again.
  void answer(const UpRequest& request, const Answer& answer, std::uint64_t now_ns, Replies& out);
  // Takes a client's request out. Returns false if it shares none. `is_gone`: LEAVE tells the store
  // of it; otherwise a request that nobody else leads is cancelled there.
  bool drop(const Asker& asker, bool is_gone, std::uint64_t now_ns);
  void drop_client(ClientId client, std::uint64_t now_ns);
  // Answers what is overdue. Returns the next time at which something will be, or kNever.
  std::uint64_t advance(std::uint64_t now_ns, Replies& out);
  // Names to the store the clients that have shared a request for this long.
  void tell_companions(std::uint64_t shared_ns, std::uint64_t now_ns);
  // Ends all of them with this error.
  void fail(const Error& error, Replies& out);
  std::size_t size() const { return by_asker_.size(); }

 private:
  struct Shared {
    Space space = Space::kNative;
    Question question = Question::kExists;
    std::string key;
    std::uint32_t id = 0;
    std::vector<Member> members = {};  // The first is the one whose request went up.
    std::vector<Member> joiners = {};
    std::size_t told = 0;  // Companions that the store knows of.
  };

  void send(const std::string& name, std::vector<Member> members, std::uint64_t now_ns);
  void tell_companions(Shared& shared, std::uint64_t now_ns);

  Upstream& upstream_;
  std::map<std::string, Shared> shared_;  // By the question's letter and name_of().
  std::map<Asker, std::string> by_asker_;
  std::set<std::pair<std::uint64_t, Asker>> deadlines_;
};

}  // namespace ivy::store
