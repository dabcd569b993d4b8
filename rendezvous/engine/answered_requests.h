// Remembers the answers to requests that their clients may send again. A client whose connection is
// lost repeats the requests that got no answer; with this memory the store answers them again, and
// nothing is done twice, however late a copy of the request comes.
//
// A client names its session, a random number, with every connection. Its requests that change
// something are numbered from 1 on, and each says the lowest number that has no answer yet: answers
// below it need not be kept any more, and a late copy of such a request is past.
//
// A session is forgotten kept_ns after the end of the last of its connections, or as soon as it has
// no answers. Clients repeat for a shorter time than that (kRepeatFor of proto/wire/store_wire.h).
// Only beyond Limits::answers are sessions without a connection forgotten early; a client that
// repeats a request then is told that its outcome is unknown.
//
// Pure. Thread: one at a time. Times: of any clock that never goes back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "proto/contract/status.h"
#include "rendezvous/engine/requests.h"

namespace ivy::store {

class AnsweredRequests {
 public:
  struct Limits {
    std::size_t answers = 256u << 10;  // Each takes about 150 bytes.
    std::size_t answers_per_session = 4096;
    std::uint64_t kept_ns = 600'000'000'000;
  };
  using Answer = std::variant<Done, Number, Error>;
  enum class Known {
    kNew,       // Serve it, and remember the answer.
    kAnswered,  // It was served: give the same answer again.
    kPast,      // Its client has heard the answer, or has given up.
    kUnclear,   // It was sent before, and its session may have been forgotten since.
    kTooMany,   // No room to remember: do not serve it.
  };
  struct Finding {
    Known known = Known::kNew;
    const Answer* answer = nullptr;  // Valid until the next call.
  };

  AnsweredRequests() : AnsweredRequests(Limits()) {}
  explicit AnsweredRequests(Limits limits) : limits_(limits) {}

  // Tells that a connection of that session has begun, or has ended.
  void begin(SessionId session);
  void end(SessionId session);
  // Forgets expired sessions. end() uses the time of the last call.
  void advance(std::uint64_t now_ns) {
    now_ns_ = now_ns;
    if (!ended_.empty()) forget_ended();
  }
  // Looks up a request. Its session must have begun.
  Finding find(SessionId session, const Numbered& request);
  // Call it only after kNew.
  void remember(SessionId session, std::uint64_t number, Answer answer);
  // Forgets everything for a new generation: clients of the one before are not served any more.
  void clear();

  std::size_t sessions() const { return sessions_.size(); }
  std::size_t answers() const { return answers_; }

 private:
  struct Session {
    std::size_t connections = 0;
    std::uint64_t ended_ns = 0;
    std::uint64_t lowest = 1;
    std::map<std::uint64_t, Answer> answers;
    bool has_gaps = false;  // It may have been forgotten before.
  };
  using Sessions = std::map<SessionId, Session>;

  Session& session_of(SessionId id);
  void raise_lowest(Session& session, std::uint64_t lowest);
  bool make_room();
  void forget_early();
  void forget(Sessions::iterator session);
  void forget_ended();

  const Limits limits_;
  Sessions sessions_;
  std::set<std::pair<std::uint64_t, SessionId>> ended_;  // Without a connection, by when.
  std::size_t answers_ = 0;
  bool forgot_early_ = false;
  std::uint64_t now_ns_ = 0;
};

}  // namespace ivy::store
