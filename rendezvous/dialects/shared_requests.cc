#include "rendezvous/dialects/shared_requests.h"

#include <algorithm>

#include "proto/contract/text.h"
#include "rendezvous/dialects/kept_keys.h"
#include "rendezvous/engine/shown_text.h"

namespace ivy::store {
namespace {

// Marks a request whose companions must be told to the store again.
constexpr std::size_t kNotTold = ~std::size_t{0};

// Such an error concerns the first member alone, whose request went up.
bool is_leaders_own(const ReplyBody& body) {
  const auto* error = std::get_if<Error>(&body);
  return error != nullptr &&
         (error->code == Code::kDeadlineExceeded || error->code == Code::kCancelled ||
          error->code == Code::kResourceExhausted);
}

}  // namespace

void SharedRequests::ask(Question question, Space space, const std::string& key,
                         const Member& member) {
  const std::string name = static_cast<char>(question) + name_of(space, key);
  const auto found = shared_.find(name);
  if (found == shared_.end()) {
    shared_[name] = {.space = space, .question = question, .key = key};
    return send(name, {member}, member.since_ns);
  }
  found->second.joiners.push_back(member);
  by_asker_[member.asker] = name;
  if (member.deadline_ns != kNever) deadlines_.insert({member.deadline_ns, member.asker});
}

void SharedRequests::send(const std::string& name, std::vector<Member> members,
                          std::uint64_t now_ns) {
  if (members.empty()) {
    shared_.erase(name);
    return;
  }
  Shared& shared = shared_.at(name);
  const Member& leader = members.front();
  deadlines_.erase({leader.deadline_ns, leader.asker});  // The store watches the leader's.
  for (const Member& member : members) by_asker_[member.asker] = name;
  Request body = Get{shared.key, std::nullopt};
  if (shared.question == Question::kValue) body = Get{shared.key, leader.deadline_ns};
  if (shared.question == Question::kExists) body = Wait{{shared.key}, leader.deadline_ns};
  UpRequest note;
  note.asker = leader.asker;
  note.space = shared.space;
  note.shared = name;
  note.reads = {shared.key};
  shared.joiners.clear();
  shared.told = 0;
  shared.id = upstream_.request(body, std::move(note), now_ns);
  shared.members = std::move(members);
}

void SharedRequests::answer(const UpRequest& request, const Answer& answer, std::uint64_t now_ns,
                            Replies& out) {
  const auto found = shared_.find(request.shared);
  if (found == shared_.end() || found->second.id != request.id) return;
  std::vector<Member> done = std::move(found->second.members);
  std::vector<Member> next = std::move(found->second.joiners);
  if (answer.is_kept) {
    done.insert(done.end(), next.begin(), next.end());
    next.clear();
  }
  if (is_leaders_own(answer.body)) {
    next.insert(next.begin(), done.begin() + 1, done.end());
    done.resize(1);
  }
  for (const Member& member : done) {
    by_asker_.erase(member.asker);
    deadlines_.erase({member.deadline_ns, member.asker});
    answer_to(member.asker.client, member.asker.request, answer.body, out);
  }
  send(request.shared, std::move(next), now_ns);
}

bool SharedRequests::drop(const Asker& asker, bool is_gone, std::uint64_t now_ns) {
  const auto found = by_asker_.find(asker);
  if (found == by_asker_.end()) return false;
  const std::string name = found->second;
  by_asker_.erase(found);
  Shared& shared = shared_.at(name);
  const bool was_leader = shared.members.front().asker == asker;
  const auto is_it = [&](const Member& member) {
    if (member.asker == asker) deadlines_.erase({member.deadline_ns, asker});
    return member.asker == asker;
  };
  std::erase_if(shared.members, is_it);
  std::erase_if(shared.joiners, is_it);
  shared.told = kNotTold;
  if (!was_leader) return true;
  if (is_gone) {
    upstream_.erase(shared.id);
  } else {
    upstream_.cancel(asker.client, shared.id);
  }
  std::vector<Member> next = std::move(shared.members);
  next.insert(next.end(), shared.joiners.begin(), shared.joiners.end());
  send(name, std::move(next), now_ns);
  return true;
}

void SharedRequests::drop_client(ClientId client, std::uint64_t now_ns) {
  const Asker first{client, 0};
  for (auto at = by_asker_.lower_bound(first); at != by_asker_.end() && at->first.client == client;
       at = by_asker_.lower_bound(first)) {
    drop(Asker(at->first), true, now_ns);
  }
}

std::uint64_t SharedRequests::advance(std::uint64_t now_ns, Replies& out) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_ns) {
    const Asker asker = deadlines_.begin()->second;
    const Shared& shared = shared_.at(by_asker_.at(asker));
    std::uint64_t since_ns = now_ns;
    for (const auto* members : {&shared.members, &shared.joiners})
      for (const Member& member : *members)
        if (member.asker == asker) since_ns = member.since_ns;
    answer_to(asker.client, asker.request,
              Error{Code::kDeadlineExceeded,
                    "waited " + tenths_text(static_cast<std::int64_t>(now_ns - since_ns)) +
                        " for key " + shown_key(shared.key)},
              out);
    drop(asker, false, now_ns);
  }
  return deadlines_.empty() ? kNever : deadlines_.begin()->first;
}

void SharedRequests::tell_companions(std::uint64_t shared_ns, std::uint64_t now_ns) {
  for (auto& [name, shared] : shared_)
    if (now_ns - shared.members.front().since_ns >= shared_ns) tell_companions(shared, now_ns);
}

void SharedRequests::tell_companions(Shared& shared, std::uint64_t now_ns) {
  const std::size_t sharing = shared.members.size() + shared.joiners.size() - 1;
  if (sharing == shared.told) return;
  std::string payload;
  put_u32(payload, static_cast<std::uint32_t>(shared.members.front().asker.client));
  put_u32(payload, shared.id);
  put_u32(payload, static_cast<std::uint32_t>(sharing));
  const auto put = [&](const Member& member) {
    put_u32(payload, static_cast<std::uint32_t>(member.asker.client));
    put_u64(payload, now_ns - member.since_ns);
  };
  std::for_each(shared.members.begin() + 1, shared.members.end(), put);
  std::for_each(shared.joiners.begin(), shared.joiners.end(), put);
  upstream_.tell(LeafOp::kCompanions, payload);
  shared.told = sharing;
}

void SharedRequests::fail(const Error& error, Replies& out) {
  for (const auto& [asker, name] : by_asker_) answer_to(asker.client, asker.request, error, out);
  by_asker_.clear();
  shared_.clear();
  deadlines_.clear();
}

}  // namespace ivy::store
