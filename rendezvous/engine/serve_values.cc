// SPDX-License-Identifier: Apache-2.0
// Serves the requests on values.
#include <algorithm>
#include <utility>

#include "rendezvous/engine/serving.h"
#include "rendezvous/engine/shown_text.h"

namespace ivy::store {

void Set::serve(Serving& here) && {
  const Contents::Entry* present = once ? here.find(key) : nullptr;
  if (present != nullptr && present->value == value) return here.answer(Done{});
  if (present != nullptr) {
    return here.answer(Error{Code::kAlreadyExists,
                             "key '" + shown_key(key) + "' was already set to another value"});
  }
  const Result<void> stored = here.contents.put(here.space, key, std::move(value));
  if (!stored.ok()) return here.answer(stored.error());
  here.answer(Done{});
  here.notify_written(key);
}

void Get::serve(Serving& here) && {
  if (const Contents::Entry* entry = here.find(key)) return here.answer(Value{entry->value});
  if (!wait_until_ns) return here.answer(Error{Code::kNotFound, "no key '" + shown_key(key) + "'"});
  const Result<void> valid = check_key(key);
  if (!valid.ok()) return here.answer(valid.error());
  here.begin_wait(here.waiter(WaitKind::kValue, {std::move(key)}, *wait_until_ns));
}

void Wait::serve(Serving& here) && {
  const Result<void> valid = check_keys(keys);
  if (!valid.ok()) return here.answer(valid.error());
  if (std::all_of(keys.begin(), keys.end(), here.exists())) return here.answer(Done{});
  here.begin_wait(here.waiter(WaitKind::kKeys, std::move(keys), deadline_ns));
}

void Check::serve(Serving& here) && {
  const Result<void> valid = check_keys(keys);
  if (!valid.ok()) return here.answer(valid.error());
  here.answer(Number{std::all_of(keys.begin(), keys.end(), here.exists()) ? 1 : 0});
}

void Add::serve(Serving& here) && {
  const Result<std::int64_t> sum = here.contents.add(here.space, key, delta);
  if (!sum.ok()) return here.answer(sum.error());
  here.answer(Number{*sum});
  here.notify_written(key);
}

void CompareSet::serve(Serving& here) && {
  const Contents::Entry* present = here.find(key);
  const bool fits_missing = !expected || (as_torch && expected->empty());
  const bool is_equal = present == nullptr ? fits_missing : expected && present->value == *expected;
  if (!is_equal && present != nullptr) return here.answer(Compared{false, present->value});
  if (!is_equal) return here.answer(Compared{false, as_torch ? std::move(expected) : std::nullopt});
  const Result<void> stored = here.contents.put(here.space, key, desired);
  if (!stored.ok()) return here.answer(stored.error());
  here.answer(Compared{true, std::move(desired)});
  here.notify_written(key);
}

void Append::serve(Serving& here) && {
  const Contents::Entry* present = here.find(key);
  const std::size_t length = (present == nullptr ? 0 : present->value.size()) + value.size();
  const Result<void> stored = present == nullptr
                                  ? here.contents.put(here.space, key, std::move(value))
                                  : here.contents.append(here.space, key, value);
  if (!stored.ok()) return here.answer(stored.error());
  here.answer(Number{static_cast<std::int64_t>(length)});
  here.notify_written(key);
}

void Delete::serve(Serving& here) && {
  const bool existed = here.contents.erase(here.space, key);
  here.answer(Number{existed ? 1 : 0});
  if (existed) here.notify_watches(key, Changed::Kind::kDeleted, {});
}

void MultiGet::serve(Serving& here) && {
  const Result<void> valid = check_keys(keys);
  if (!valid.ok()) return here.answer(valid.error());
  Values values;
  std::size_t reply_bytes = 0;
  for (const std::string& key : keys) {
    const Contents::Entry* entry = here.find(key);
    if (entry == nullptr)
      return here.answer(Error{Code::kNotFound, "no key '" + shown_key(key) + "'"});
    reply_bytes += entry->value.size() + kReplyTextBytes;
    if (reply_bytes > kMaxReplyBytes) {
      return here.answer(Error{Code::kResourceExhausted, "the values together exceed " +
                                                             std::to_string(kMaxReplyBytes) +
                                                             " bytes: request fewer at a time"});
    }
    values.bytes.push_back(entry->value);
  }
  here.answer(std::move(values));
}

void MultiSet::serve(Serving& here) && {
  const Result<void> stored = here.contents.put_all(here.space, entries);
  if (!stored.ok()) return here.answer(stored.error());
  here.answer(Done{});
  for (const auto& [key, value] : entries) here.notify_written(key);
}

void List::serve(Serving& here) && {
  Keys list;
  std::size_t reply_bytes = 0;
  const auto& values = here.contents.of(here.space).values;
  for (auto at = values.lower_bound(std::max(prefix, after)); at != values.end(); ++at) {
    if (!at->first.starts_with(prefix)) break;
    if (!after.empty() && at->first <= after) continue;
    reply_bytes += at->first.size() + kReplyTextBytes;
    if ((limit != 0 && list.keys.size() == limit) || reply_bytes > kMaxReplyBytes) {
      list.more = true;
      break;
    }
    list.keys.push_back(at->first);
  }
  here.answer(std::move(list));
}

void Count::serve(Serving& here) && {
  const auto& values = here.contents.of(here.space).values;
  if (prefix.empty()) return here.answer(Number{static_cast<std::int64_t>(values.size())});
  auto at = values.lower_bound(prefix);
  std::int64_t count = 0;
  for (; at != values.end() && at->first.starts_with(prefix); ++at) ++count;
  here.answer(Number{count});
}

}  // namespace ivy::store
