// SPDX-License-Identifier: Apache-2.0
// agent.proto is compatible with every released version of it: checked by rules over the
// descriptors, and by messages that are converted to the other version and back.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace ivy {
namespace {

namespace pb = google::protobuf;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs protoc on the text of a .proto file.
pb::FileDescriptorProto parsed(const std::string& text) {
  std::string directory = testing::TempDir() + "ivy-protocol-XXXXXX";
  EXPECT_NE(mkdtemp(directory.data()), nullptr);
  std::ofstream(directory + "/agent.proto") << text;
  const std::string out = directory + "/agent.pb";
  const std::string command =
      "'" IVY_PROTOC "' -I '" + directory + "' --descriptor_set_out='" + out + "' agent.proto";
  EXPECT_EQ(std::system(command.c_str()), 0);
  pb::FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromString(content_of(out)));
  std::filesystem::remove_all(directory);
  return set.file_size() == 1 ? set.file(0) : pb::FileDescriptorProto();
}

// One version of the protocol in a separate descriptor pool, so that names of several versions do
// not clash.
class Form {
 public:
  explicit Form(const std::string& text) {
    pb::FileDescriptorProto file = parsed(text);
    // The comparison needs reflection, which lite messages lack.
    file.mutable_options()->clear_optimize_for();
    file_ = pool_.BuildFile(file);
    EXPECT_NE(file_, nullptr);
  }

  const pb::FileDescriptor& file() const { return *file_; }
  const pb::Descriptor* find(const std::string& message) const {
    return pool_.FindMessageTypeByName(message);
  }
  std::unique_ptr<pb::Message> make(const std::string& message) {
    return std::unique_ptr<pb::Message>(messages_.GetPrototype(find(message))->New());
  }

 private:
  pb::DescriptorPool pool_;
  pb::DynamicMessageFactory messages_{&pool_};
  const pb::FileDescriptor* file_ = nullptr;
};

std::vector<std::filesystem::path> frozen_files() {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(IVY_FROZEN_PROTOS)) {
    if (entry.path().extension() == ".proto") found.push_back(entry.path());
  }
  return found;
}

// ---- The rules ----------------------------------------------------------------------------------

using Faults = std::vector<std::string>;

std::string oneof_of(const pb::FieldDescriptor& field) {
  const pb::OneofDescriptor* const oneof = field.real_containing_oneof();
  return oneof == nullptr ? "" : oneof->name();
}

std::string message_of(const pb::FieldDescriptor& field) {
  return field.message_type() == nullptr ? "" : field.message_type()->full_name();
}

void compare_field(const pb::FieldDescriptor& then, const pb::Descriptor& message, Faults& faults) {
  const pb::FieldDescriptor* const now = message.FindFieldByNumber(then.number());
  if (now == nullptr) {
    if (!message.IsReservedNumber(then.number()))
      faults.push_back(then.full_name() + " is gone and its number is not reserved");
    return;
  }
  // Names are not sent, but a number that gets another name most likely means something else.
  if (now->name() != then.name())
    faults.push_back(then.full_name() + " is called " + now->name() + " now");
  if (now->type() != then.type() || message_of(*now) != message_of(then))
    faults.push_back(then.full_name() + " is of another type");
  if (now->is_repeated() != then.is_repeated())
    faults.push_back(then.full_name() + " is repeated in one of both");
  if (oneof_of(*now) != oneof_of(then))
    faults.push_back(then.full_name() + " went into or out of a oneof");
}

void compare_message(const pb::Descriptor& then, const Form& current, Faults& faults) {
  const pb::Descriptor* const now = current.find(then.full_name());
  if (now == nullptr) return faults.push_back(then.full_name() + " is gone");
  for (int i = 0; i < then.field_count(); ++i) compare_field(*then.field(i), *now, faults);
  for (int i = 0; i < now->field_count(); ++i) {
    if (then.IsReservedNumber(now->field(i)->number()))
      faults.push_back(now->field(i)->full_name() + " has the number of a field that was removed");
  }
}

void compare_service(const pb::ServiceDescriptor& then, const Form& current, Faults& faults) {
  const pb::ServiceDescriptor* const now = current.file().FindServiceByName(then.name());
  if (now == nullptr) return faults.push_back(then.full_name() + " is gone");
  for (int i = 0; i < then.method_count(); ++i) {
    const pb::MethodDescriptor& old = *then.method(i);
    const pb::MethodDescriptor* const method = now->FindMethodByName(old.name());
    if (method == nullptr) {
      faults.push_back(old.full_name() + " is gone");
    } else if (method->client_streaming() != old.client_streaming() ||
               method->server_streaming() != old.server_streaming()) {
      faults.push_back(old.full_name() + " streams in another way");
    } else if (method->input_type()->full_name() != old.input_type()->full_name() ||
               method->output_type()->full_name() != old.output_type()->full_name()) {
      faults.push_back(old.full_name() + " takes or gives another message");
    }
  }
}

// Returns the changes that break a program of the old version when it talks to one of the new
// version, in either direction. agent.proto has neither enumerations nor nested messages; when it
// gets some, their rules belong here.
Faults compare(const Form& then, const Form& current) {
  Faults faults;
  if (then.file().package() != current.file().package()) faults.push_back("another package");
  if (current.file().enum_type_count() != 0) faults.push_back("no rule for enumerations yet");
  for (int i = 0; i < current.file().message_type_count(); ++i) {
    if (current.file().message_type(i)->nested_type_count() != 0)
      faults.push_back("no rule for nested messages yet");
  }
  for (int i = 0; i < then.file().message_type_count(); ++i)
    compare_message(*then.file().message_type(i), current, faults);
  for (int i = 0; i < then.file().service_count(); ++i)
    compare_service(*then.file().service(i), current, faults);
  return faults;
}

// ---- The bytes ----------------------------------------------------------------------------------

void fill(pb::Message& message, const std::string& oneof_choice);

void set_value(pb::Message& message, const pb::FieldDescriptor* field, int salt) {
  const pb::Reflection& reflection = *message.GetReflection();
  const bool many = field->is_repeated();
  const auto number = static_cast<unsigned>(field->number() * 1000 + salt);
  // Not UTF-8, for bytes fields.
  const std::string bytes = "v" + std::to_string(number) + std::string("\0\xff", 2);
  const std::string text = "v" + std::to_string(number);
  switch (field->cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_STRING: {
      const std::string& value = field->type() == pb::FieldDescriptor::TYPE_BYTES ? bytes : text;
      many ? reflection.AddString(&message, field, value)
           : reflection.SetString(&message, field, value);
      break;
    }
    case pb::FieldDescriptor::CPPTYPE_UINT32:
      reflection.SetUInt32(&message, field, 0xff000000u + number);
      break;
    case pb::FieldDescriptor::CPPTYPE_UINT64:
      reflection.SetUInt64(&message, field, (std::uint64_t{1} << 63) + number);
      break;
    case pb::FieldDescriptor::CPPTYPE_INT64:
      reflection.SetInt64(&message, field, -static_cast<std::int64_t>(number));
      break;
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      reflection.SetBool(&message, field, true);
      break;
    case pb::FieldDescriptor::CPPTYPE_MESSAGE:
      fill(many ? *reflection.AddMessage(&message, field)
                : *reflection.MutableMessage(&message, field),
           "");
      break;
    default:
      FAIL() << field->full_name() << ": a type that this test does not fill yet";
  }
}

// Gives every field a value that is not its default. Of a oneof it sets the named field, or the
// last one.
void fill(pb::Message& message, const std::string& oneof_choice) {
  const pb::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const pb::FieldDescriptor* const field = type.field(i);
    const bool other = field->real_containing_oneof() != nullptr && !oneof_choice.empty() &&
                       field->name() != oneof_choice;
    if (other) continue;
    set_value(message, field, 1);
    if (field->is_repeated()) set_value(message, field, 2);
  }
}

// The content of `from` survives a conversion to `to` and back: fields that both know are read, and
// unknown fields are kept.
void check_round_trip(Form& from, Form& to, const std::string& name, const std::string& choice) {
  const std::unique_ptr<pb::Message> sent = from.make(name);
  fill(*sent, choice);
  const std::unique_ptr<pb::Message> passed = to.make(name);
  ASSERT_TRUE(passed->ParseFromString(sent->SerializeAsString())) << name;
  for (int i = 0; i < sent->GetDescriptor()->field_count(); ++i) {
    const pb::FieldDescriptor* const field = sent->GetDescriptor()->field(i);
    const pb::FieldDescriptor* const theirs =
        passed->GetDescriptor()->FindFieldByNumber(field->number());
    if (theirs == nullptr || field->is_repeated()) continue;
    EXPECT_EQ(passed->GetReflection()->HasField(*passed, theirs),
              sent->GetReflection()->HasField(*sent, field))
        << field->full_name();
  }
  const std::unique_ptr<pb::Message> back = from.make(name);
  ASSERT_TRUE(back->ParseFromString(passed->SerializeAsString())) << name;
  EXPECT_TRUE(pb::util::MessageDifferencer::Equals(*sent, *back)) << name << " " << choice;
}

void check_all(Form& from, Form& to) {
  for (int i = 0; i < from.file().message_type_count(); ++i) {
    const pb::Descriptor& type = *from.file().message_type(i);
    if (to.find(type.full_name()) == nullptr) continue;
    check_round_trip(from, to, type.full_name(), "");
    for (int k = 0; k < type.field_count(); ++k) {
      if (type.field(k)->real_containing_oneof() != nullptr)
        check_round_trip(from, to, type.full_name(), type.field(k)->name());
    }
  }
}

// ---- Tests --------------------------------------------------------------------------------------

TEST(AgentProtocol, HasAFrozenVersion) { EXPECT_FALSE(frozen_files().empty()); }

TEST(AgentProtocol, IsCompatibleWithEveryFrozenVersion) {
  const Form current(content_of(IVY_CURRENT_PROTO));
  for (const auto& path : frozen_files()) {
    const Form frozen(content_of(path));
    for (const std::string& fault : compare(frozen, current))
      ADD_FAILURE() << path << ": " << fault;
  }
}

TEST(AgentProtocol, CarriesBytesInBothDirections) {
  for (const auto& path : frozen_files()) {
    SCOPED_TRACE(path);
    Form current(content_of(IVY_CURRENT_PROTO));
    Form frozen(content_of(path));
    check_all(frozen, current);
    check_all(current, frozen);
  }
}

struct Change {
  const char* what;
  const char* from;
  const char* to;
  const char* fault;  // Part of the only complaint; empty: allowed.
};

std::string changed(std::string text, const Change& change) {
  const std::size_t at = text.find(change.from);
  EXPECT_NE(at, std::string::npos) << change.what;
  return at == std::string::npos ? text
                                 : text.replace(at, std::string(change.from).size(), change.to);
}

// The rules report incompatible changes and accept harmless ones.
TEST(AgentProtocol, DetectsIncompatibleChanges) {
  const std::string text = content_of(std::string(IVY_FROZEN_PROTOS) + "/agent-0.1.0.proto");
  const Form frozen(text);
  const Change kChanges[] = {
      {"nothing", "syntax", "syntax", ""},
      {"a new field", "bool reattach = 3;", "bool reattach = 3; string later = 700;", ""},
      {"a new call", "rpc Facts(", "rpc More(FactsRequest) returns (FactsReply); rpc Facts(", ""},
      {"a removed field", "bool reattach = 3;", "", "reserved"},
      {"a removed field whose number is kept", "bool reattach = 3;", "reserved 3;", ""},
      {"another number", "bool reattach = 3;", "bool reattach = 30;", "reserved"},
      {"another type", "bool reattach = 3;", "uint32 reattach = 3;", "another type"},
      {"another message", "JobDescription job = 5; ", "Opened job = 5; ", "another type"},
      {"another name", "bool reattach = 3;", "bool again = 3;", "is called again now"},
      {"one of many", "repeated bytes hosts = 3;", "bytes hosts = 3;", "repeated"},
      {"another way of streaming", "rpc Open(stream OpenRequest)", "rpc Open(OpenRequest)",
       "streams in another way"},
      {"another answer", "returns (FactsReply)", "returns (ListReply)", "another message"},
      {"a removed call", "rpc Facts(FactsRequest) returns (FactsReply);", "", "is gone"},
      {"another package", "package ivy.agent.v1;", "package ivy.agent.v2;", "another package"},
  };
  for (const Change& change : kChanges) {
    const Form current(changed(text, change));
    const Faults faults = compare(frozen, current);
    if (*change.fault == '\0') {
      EXPECT_TRUE(faults.empty()) << change.what << ": " << faults.front();
      continue;
    }
    ASSERT_FALSE(faults.empty()) << change.what;
    EXPECT_NE(faults.front().find(change.fault), std::string::npos)
        << change.what << ": " << faults.front();
  }
}

TEST(AgentProtocol, DetectsAReusedNumberOfARemovedField) {
  const std::string text = content_of(std::string(IVY_FROZEN_PROTOS) + "/agent-0.1.0.proto");
  const Form frozen(changed(text, {"given up", "bool reattach = 3;", "reserved 3;", ""}));
  const Form current(changed(text, {"used again", "bool reattach = 3;", "bytes other = 3;", ""}));
  const Faults faults = compare(frozen, current);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults.front().find("field that was removed"), std::string::npos) << faults.front();
}

// Field numbers as they are on the wire: version 0.1.0 wrote these bytes.
TEST(AgentProtocol, ReadsBytesOfTheFirstRelease) {
  Form current(content_of(IVY_CURRENT_PROTO));
  const std::string bytes(
      "\x0a\x1a\x0a\x04"
      "abcd\x10\x07\x18\x01\x22\x06h-arch\x2a\x06\x0a\x04"
      "user",
      28);
  const std::unique_ptr<pb::Message> request = current.make("ivy.agent.v1.OpenRequest");
  ASSERT_TRUE(request->ParseFromString(bytes));
  EXPECT_EQ(
      request->ShortDebugString(),
      "open { job_id: \"abcd\" host: 7 reattach: true bundle: \"h-arch\" job { user: \"user\" } }");
}

}  // namespace
}  // namespace ivy
