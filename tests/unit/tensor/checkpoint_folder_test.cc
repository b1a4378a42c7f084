// Which checkpoint of a folder a reader takes, and which it refuses.
#include "tensor/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "process/failpoint.h"
#include "process/steady_deadline.h"
#include "status/str_cat.h"
#include "tensor/checkpoint/tensor_source.h"
#include "tensor/checkpoint_manifest.h"
#include "tensor/safetensors.h"
#include "tests/testing/eventually.h"
#include "tests/testing/replacing_saves.h"
#include "tests/testing/status_matchers.h"

namespace shardmesh {
namespace {

using ::shardmesh::test::IsOk;
using ::shardmesh::test::IsOkAndHolds;
using ::shardmesh::test::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class CheckpointFolderTest : public testing::Test {
 protected:
  CheckpointFolderTest()
      : folder_(StrCat(testing::TempDir(), "/checkpoint_folder_",
                       testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~CheckpointFolderTest() override { std::filesystem::remove_all(folder_); }

  void Make(const std::string& path, const std::string& text = "x") {
    std::filesystem::create_directories(std::filesystem::path(folder_ + "/" + path).parent_path());
    std::ofstream(folder_ + "/" + path) << text;
  }
  // Makes the marker of the manifest that Make makes.
  void MakeMarker(const std::string& folder = "") {
    Make(folder + std::string(kCheckpointMarker), CheckpointMarkerText("x"));
  }
  void MakeStep(int64_t step, bool is_complete) {
    const std::string name = StepFolderName(step);
    Make(name + "/" + std::string(kCheckpointManifest));
    Make(name + "/" + std::string(kSingleCheckpointFile));
    if (is_complete) MakeMarker(name + "/");
  }

  // Saves a step that has one file, with a tensor of one byte.
  void SaveStep(int64_t step) {
    const std::string header = R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    std::string file(8, '\0');
    file[0] = static_cast<char>(header.size());
    ReplaceCheckpoint(
        folder_, StepFolderName(step),
        test::SavedFiles{.manifest = "x",
                         .files = {{std::string(kSingleCheckpointFile), file + header + "x"}}});
  }
  // Removes a step as a save does.
  void RemoveStep(int64_t step) {
    const std::string old = StrCat(folder_, "/", StepFolderName(step));
    std::filesystem::remove(StrCat(old, "/", kCheckpointMarker));
    std::filesystem::remove_all(old);
  }

  std::string Path(std::string_view name) const { return StrCat(folder_, "/", name); }

  const std::string folder_;
};

// As a save leaves the folder between the old and the new checkpoint.
TEST_F(CheckpointFolderTest, WaitsForASaveThatReplacesTheCheckpoint) {
  const test::ScopedMaxReplaceTime patience(absl::Hours(1));
  MakeStep(3, true);
  const std::string staging = StrCat(folder_, "/", kSaveStaging, "/");
  const struct {
    std::string aside;
    std::string place;
    std::optional<int64_t> step;
  } kCases[] = {{".aside", "", {}},
                {".aside-step-00000020", "step-00000020/", {}},
                {".aside-step-00000020", "step-00000020/", 20}};
  for (const auto& each : kCases) {
    std::filesystem::create_directories(staging + each.aside);
    std::filesystem::create_directories(StrCat(folder_, "/", each.place));
    const std::string own = StrCat(folder_, each.place.empty() ? "" : "/step-00000020");
    EXPECT_TRUE(IsBeingReplaced(own));
    EXPECT_TRUE(IsBeingReplaced(own + "/"));
    std::thread save([&] {
      absl::SleepFor(absl::Milliseconds(50));
      Make(each.place + std::string(kCheckpointManifest));
      Make(each.place + std::string(kSingleCheckpointFile));
      Make(each.place + "marker", CheckpointMarkerText("x"));
      std::filesystem::rename(Path(each.place + "marker"),
                              Path(StrCat(each.place, kCheckpointMarker)));
    });
    EXPECT_THAT(FindCheckpointFolder(folder_, each.step), IsOkAndHolds(own)) << each.aside;
    save.join();
    EXPECT_FALSE(IsBeingReplaced(own));
    // With the marker in place, the folder that is aside means nothing.
    EXPECT_THAT(FindCheckpointFolder(folder_, each.step), IsOkAndHolds(own)) << each.aside;
    std::filesystem::remove_all(staging);
    std::filesystem::remove_all(each.place.empty() ? Path(kCheckpointMarker) : own);
    std::filesystem::remove(Path(kCheckpointManifest));
    std::filesystem::remove(Path(kSingleCheckpointFile));
  }
  // The step beside it is another checkpoint, and needs no wait.
  std::filesystem::create_directories(staging + ".aside-step-00000020");
  const absl::Time begin = absl::Now();
  EXPECT_THAT(FindCheckpointFolder(folder_, 3), IsOkAndHolds(folder_ + "/step-00000003"));
  EXPECT_LT(absl::Now() - begin, MaxReplaceTime());
}

TEST_F(CheckpointFolderTest, ASaveThatDiedWhileItReplacedTheCheckpointIsWaitedForOnlySoLong) {
  EXPECT_EQ(MaxReplaceTime(), kMaxReplaceTime);
  std::filesystem::create_directories(StrCat(folder_, "/", kSaveStaging, "/.aside"));
  Make(std::string(kCheckpointManifest));
  {
    const test::ScopedMaxReplaceTime shortly(absl::Milliseconds(20));
    EXPECT_THAT(FindCheckpointFolder(folder_),
                StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
    EXPECT_THAT(FindSteadily(folder_, [] { return false; }), IsOkAndHolds(false));
  }
  // The deadline of the caller takes the place of a new one.
  const test::ScopedMaxReplaceTime patience(absl::InfiniteDuration());
  const auto past = SteadyDeadline::After(absl::ZeroDuration());
  EXPECT_THAT(FindCheckpointFolder(folder_, {}, past),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_THAT(AwaitReplaced(folder_, past), IsOk());
}

// The save of this folder never ends, and the reader's own time does not either.
TEST_F(CheckpointFolderTest, TheCallerEndsTheWaitForASave) {
  std::filesystem::create_directories(StrCat(folder_, "/", kSaveStaging, "/", kSaveAside));
  Make(std::string(kCheckpointManifest));
  const test::ScopedMaxReplaceTime patience(absl::InfiniteDuration());
  int calls = 0;
  const auto keep_going = [&calls] {
    return ++calls % 3 == 0 ? absl::CancelledError("the caller has gone") : absl::OkStatus();
  };
  const std::string missing = Path("missing.safetensors");
  for (const absl::Status& ended :
       {FindCheckpointFolder(folder_, {}, ReplaceDeadline(), keep_going).status(),
        AwaitReplaced(folder_, ReplaceDeadline(), keep_going),
        FindSteadily(
            folder_, [] { return false; }, keep_going)
            .status(),
        Checkpoint::Open(folder_, {}, keep_going).status(),
        Checkpoint::Open(missing, {}, keep_going).status(),
        TensorSource::Open(folder_, {}, keep_going).status(),
        TensorSource::Open(missing, {}, keep_going).status()}) {
    EXPECT_THAT(ended, StatusIs(absl::StatusCode::kCancelled));
  }
  EXPECT_EQ(calls, 7 * 3);
  // A reader that finds what it looks for asks nobody.
  EXPECT_THAT(FindSteadily(
                  folder_, [] { return true; }, keep_going),
              IsOkAndHolds(true));
  EXPECT_EQ(calls, 7 * 3);
}

TEST_F(CheckpointFolderTest, SaysThatNoDescriptorIsLeftAndWaitsForNoSave) {
  MakeStep(3, true);
  const std::string step = folder_ + "/step-00000003";
  const test::ScopedMaxReplaceTime patience(absl::InfiniteDuration());
  struct rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status held = HeldFolder(step).status();
  const absl::Status found = FindCheckpointFolder(folder_).status();
  const absl::Status opened = Checkpoint::Open(step).status();
  const bool is_found = FindSteadily(step, [] { return false; }).value_or(true);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  for (const absl::Status& status : {held, found, opened}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  }
  EXPECT_FALSE(is_found);
  EXPECT_THAT(HeldFolder(step).status(), IsOk());
  EXPECT_THAT(HeldFolder(folder_ + "/missing").status(), IsOk());
  EXPECT_THAT(HeldFolder(StrCat(step, "/", kCheckpointMarker)).status(), IsOk());
}

TEST_F(CheckpointFolderTest, AHeldFolderIsNotInPlaceIfItsMarkerIsNot) {
  MakeStep(3, true);
  const std::string step = folder_ + "/step-00000003";
  const HeldFolder held(step);
  EXPECT_TRUE(held.IsInPlace());
  std::filesystem::remove(StrCat(step, "/", kCheckpointMarker));
  EXPECT_FALSE(held.IsInPlace());
  MakeMarker("step-00000003/");
  EXPECT_FALSE(held.IsInPlace()) << "another file";
  EXPECT_TRUE(HeldFolder(step).IsInPlace());
  EXPECT_TRUE(HeldFolder(folder_ + "/missing").IsInPlace());
}

TEST_F(CheckpointFolderTest, AMarkerThatIsAwayAtBothLooksMayHaveBeenThereInBetween) {
  Make(std::string(kCheckpointManifest));
  MakeMarker();
  const std::string marker = Path(kCheckpointMarker);
  const std::string aside = StrCat(folder_, "/", kSaveStaging, "/", kSaveAside);
  std::filesystem::create_directories(aside);
  EXPECT_TRUE(HeldFolder(folder_).IsSteady()) << "with the marker in place";
  std::filesystem::rename(marker, aside + "/marker");
  const HeldFolder held(folder_);
  std::filesystem::rename(aside + "/marker", marker);
  std::filesystem::rename(marker, aside + "/marker");
  EXPECT_TRUE(held.IsInPlace());
  EXPECT_FALSE(held.IsSteady());
  std::filesystem::remove_all(aside);
  EXPECT_FALSE(held.IsSteady()) << "something was aside";
  EXPECT_TRUE(HeldFolder(folder_).IsSteady());
  const HeldFolder before(folder_);
  std::filesystem::create_directories(aside);
  EXPECT_FALSE(before.IsSteady()) << "something is aside";
}

TEST_F(CheckpointFolderTest, AStepThatALinkLeadsToIsBeingReplacedToo) {
  MakeStep(7, false);
  std::filesystem::create_directories(StrCat(folder_, "/", kSaveStaging, "/.aside-step-00000007"));
  std::filesystem::create_directory_symlink("step-00000007", Path("latest"));
  EXPECT_TRUE(IsBeingReplaced(Path("step-00000007")));
  EXPECT_TRUE(IsBeingReplaced(Path("latest")));
  EXPECT_TRUE(IsBeingReplaced(Path("latest/")));
  EXPECT_FALSE(IsBeingReplaced(folder_));
}

// As a save does that fails after it has set the checkpoint aside.
TEST_F(CheckpointFolderTest, AMarkerThatWasAwayAndIsBackIsNotInPlace) {
  Make(std::string(kCheckpointManifest));
  MakeMarker();
  const HeldFolder held(folder_);
  // Change times count in coarse steps.
  EXPECT_TRUE(test::Eventually([&] {
    std::filesystem::rename(Path(kCheckpointMarker), Path("away"));
    std::filesystem::rename(Path("away"), Path(kCheckpointMarker));
    return !held.IsInPlace();
  }));
  EXPECT_FALSE(held.IsSteady());
}

TEST_F(CheckpointFolderTest, FindsNothingOnlyWhereNoSaveHidesIt) {
  EXPECT_THAT(FindSteadily(folder_, [] { return false; }), IsOkAndHolds(false));
  EXPECT_THAT(FindSteadily(folder_, [] { return true; }), IsOkAndHolds(true));
  const test::SavedFiles saved = {.manifest = "x", .files = {{"f", "x"}}};
  ReplaceCheckpoint(folder_, "", saved);
  int calls = 0;
  const auto find_second = [&] {
    if (calls++ == 0) ReplaceCheckpoint(folder_, "", saved);
    return calls == 2;
  };
  EXPECT_THAT(FindSteadily(folder_, find_second), IsOkAndHolds(true));
  calls = 0;
  EXPECT_THAT(FindSteadily(folder_, [&] { return calls++ == 1; }), IsOkAndHolds(false))
      << "it is not called again";
  // Also a reader whose time is over looks several times.
  const test::ScopedMaxReplaceTime no_time(absl::ZeroDuration());
  calls = 0;
  const auto find_last = [&] {
    ReplaceCheckpoint(folder_, "", saved);
    return ++calls == kMaxFolderAttempts;
  };
  EXPECT_THAT(FindSteadily(folder_, find_last), IsOkAndHolds(true));
  calls = 0;
  const auto find_none = [&] {
    ReplaceCheckpoint(folder_, "", saved);
    ++calls;
    return false;
  };
  EXPECT_THAT(FindSteadily(folder_, find_none), IsOkAndHolds(false));
  EXPECT_EQ(calls, kMaxFolderAttempts);
  EXPECT_EQ(FolderOfFile("/a/b"), "/a");
  EXPECT_EQ(FolderOfFile("b"), ".");
}

TEST_F(CheckpointFolderTest, FindsACheckpointThatSavesReplaceAgainAndAgain) {
  MakeStep(3, true);
  const std::string latest = StepFolderName(20);
  const test::SavedFiles saved = {.manifest = "x", .files = {{"model.safetensors", "x"}}};
  const struct {
    std::string place;
    std::optional<int64_t> step;
  } kCases[] = {{latest, {}}, {latest, 20}, {"", {}}};
  for (const auto& each : kCases) {
    const std::string own = StrCat(folder_, each.place.empty() ? "" : "/", each.place);
    ReplaceCheckpoint(folder_, each.place, saved);
    test::ReplacingSaves saves(folder_, each.place, {saved});
    for (int i = 0; i < 200; ++i) {
      EXPECT_THAT(FindCheckpointFolder(folder_, each.step), IsOkAndHolds(own));
      saves.Continue();
    }
  }
}

// As `save --step N --keep 1` does with rising steps.
TEST_F(CheckpointFolderTest, FindsTheLatestStepWhileSavesRemoveLowerOnes) {
  SaveStep(0);
  test::ReplacingSaves saves([this](size_t number) {
    const auto step = static_cast<int64_t>(number);
    SaveStep(step + 1);
    RemoveStep(step);
  });
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(FindCheckpointFolder(folder_), IsOk());
    saves.Continue();
    EXPECT_THAT(Checkpoint::Open(folder_), IsOk());
    saves.Continue();
  }
}

TEST_F(CheckpointFolderTest, OpensALaterStepIfTheOneThatItFoundIsRemovedMeanwhile) {
  const test::ScopedMaxReplaceTime patience(test::ReplacingSaves::kPatience);
  SaveStep(3);
  ASSERT_THAT(ArmFailpoints("checkpoint.found=delay"), IsOk());
  std::thread save([this] {
    EXPECT_TRUE(test::Eventually([] { return !IsArmed("checkpoint.found"); }));
    SaveStep(4);
    RemoveStep(3);
  });
  const absl::StatusOr<Checkpoint> opened = Checkpoint::Open(folder_);
  save.join();
  EXPECT_THAT(opened, IsOk());
  // A step that is asked for has no other in its place, whether or not a save wrote it.
  ASSERT_THAT(ArmFailpoints("checkpoint.found=delay"), IsOk());
  std::thread removal([this] {
    EXPECT_TRUE(test::Eventually([] { return !IsArmed("checkpoint.found"); }));
    RemoveStep(4);
  });
  const absl::Status removed = Checkpoint::Open(folder_, 4).status();
  removal.join();
  // The removal may be midway.
  EXPECT_TRUE(removed.ok() || absl::IsNotFound(removed) || absl::IsInvalidArgument(removed))
      << removed;
  Make("step-00000005/model.safetensors", "no such file");
  EXPECT_THAT(Checkpoint::Open(folder_, 5),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

TEST_F(CheckpointFolderTest, NamesFoldersOfStepsSoThatTheySortByStep) {
  EXPECT_EQ(StepFolderName(7), "step-00000007");
  EXPECT_EQ(StepFolderName(kMaxCheckpointStep), "step-99999999");
  EXPECT_EQ(StepOfFolder("step-00000120"), 120);
  for (const char* const name :
       {"step-120", "step-0000012x", "step-000000120", "stop-00000120", "", ".shardmesh-save"}) {
    EXPECT_EQ(StepOfFolder(name), std::nullopt) << name;
  }
}

TEST_F(CheckpointFolderTest, TakesTheLatestCompleteStep) {
  MakeStep(3, true);
  MakeStep(20, true);
  MakeStep(100, false);
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_ + "/step-00000020"));
  EXPECT_THAT(FindCheckpointFolder(folder_, 3), IsOkAndHolds(folder_ + "/step-00000003"));
}

TEST_F(CheckpointFolderTest, RefusesAStepThatIsUnfinishedOrMissing) {
  MakeStep(3, true);
  MakeStep(100, false);
  const absl::Status unfinished = FindCheckpointFolder(folder_, 100).status();
  EXPECT_THAT(unfinished, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_THAT(unfinished.message(), HasSubstr("unfinished"));
  const absl::Status missing = FindCheckpointFolder(folder_, 4).status();
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(missing.message(), HasSubstr("complete steps 3"));
}

TEST_F(CheckpointFolderTest, SaysThatAFolderHasACheckpointWithoutSteps) {
  // Empty: no checkpoint without steps is mentioned.
  EXPECT_THAT(FindCheckpointFolder(folder_, 150).status().message(),
              Not(HasSubstr("leave out the step")));
  std::ofstream(folder_ + "/model.safetensors") << "x";
  const absl::Status missing = FindCheckpointFolder(folder_, 150).status();
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound, Reason::kNotFound));
  EXPECT_THAT(missing.message(), HasSubstr("has no checkpoint of step 150; it has a complete "
                                           "checkpoint without steps: leave out the step"));
}

TEST_F(CheckpointFolderTest, RefusesAnUnfinishedCheckpointInTheFolderItself) {
  Make(std::string(kCheckpointManifest));
  Make(std::string(kSingleCheckpointFile));
  EXPECT_THAT(FindCheckpointFolder(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  EXPECT_THAT(Checkpoint::Open(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  MakeMarker();
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_));
}

TEST_F(CheckpointFolderTest, RefusesAMarkerThatIsNotThatOfTheManifest) {
  MakeStep(3, true);
  const std::string step = StepFolderName(3) + "/";
  const std::string marker(kCheckpointMarker);
  const std::string manifest(kCheckpointManifest);
  const auto refused_because_of = [&](const std::string& file) {
    const absl::Status refused = FindCheckpointFolder(folder_).status();
    EXPECT_THAT(refused, StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
    EXPECT_THAT(refused.message(), HasSubstr(StrCat(folder_, "/", step, file)));
    EXPECT_THAT(FindCheckpointFolder(folder_, 3), StatusIs(absl::StatusCode::kInvalidArgument));
  };
  std::string other = CheckpointMarkerText("x");
  other[20] = 'g';  // no digit
  for (const std::string& text : {std::string(), std::string("{}"), other, other + " "}) {
    Make(step + marker, text);
    refused_because_of(marker);
  }
  MakeMarker(step);
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOk());
  Make(step + manifest, "changed");
  refused_because_of(manifest);
  std::filesystem::remove(folder_ + "/" + step + manifest);
  refused_because_of(manifest);
}

TEST_F(CheckpointFolderTest, AnUnfinishedCheckpointHidesNoCompleteStep) {
  Make(std::string(kCheckpointManifest));
  Make(std::string(kSingleCheckpointFile));
  MakeStep(300, false);
  EXPECT_THAT(FindCheckpointFolder(folder_),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
  MakeStep(200, true);
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_ + "/step-00000200"));
  MakeMarker("");
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_));
}

TEST_F(CheckpointFolderTest, TakesACheckpointThatNoSaveWrote) {
  Make(std::string(kCheckpointIndex));
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_));
}

TEST_F(CheckpointFolderTest, TakesFilesOfAnyNameBeforeTheFoldersOfSteps) {
  MakeStep(3, true);
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_ + "/step-00000003"));
  Make("model-00001-of-00002.safetensors");
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_));
  EXPECT_THAT(FindCheckpointFolder(folder_, 3), IsOkAndHolds(folder_ + "/step-00000003"));
}

TEST_F(CheckpointFolderTest, NeverTakesAnOlderStepBecauseOfAnErrorOfTheDisk) {
  MakeStep(3, true);
  MakeStep(20, true);
  EXPECT_THAT(CompleteSteps(folder_), IsOkAndHolds(ElementsAre(3, 20)));
  for (int hit = 1; hit <= 10; ++hit) {  // at any place of both listings
    ASSERT_THAT(ArmFailpoints(StrCat("folder.read=eio:", hit)), IsOk());
    EXPECT_THAT(FindCheckpointFolder(folder_), StatusIs(absl::StatusCode::kDataLoss)) << hit;
  }
  EXPECT_THAT(FindCheckpointFolder(folder_), IsOkAndHolds(folder_ + "/step-00000020"));
}

TEST_F(CheckpointFolderTest, RefusesAStepOfAFile) {
  EXPECT_THAT(Checkpoint::Open(folder_ + "/missing", 3), StatusIs(absl::StatusCode::kNotFound));
  Make("model.safetensors");
  EXPECT_THAT(Checkpoint::Open(folder_ + "/model.safetensors", 3),
              StatusIs(absl::StatusCode::kInvalidArgument, Reason::kBadFile));
}

}  // namespace
}  // namespace shardmesh
