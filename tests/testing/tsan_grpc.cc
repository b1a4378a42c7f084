// Tells ThreadSanitizer when Debian's Abseil and gRPC, which are compiled without it, pass data
// between threads.
//
// The sanitizer sees a program's own loads and stores, but no synchronisation inside a library that
// is not instrumented. It would report all data that an absl::Mutex protects. This file intercepts
// the synchronising functions by defining them in the executable (for this it needs -rdynamic).
// Each function calls the original and declares the happens-before edge:
// - absl::Mutex, CondVar, Notification, BlockingCounter: the guarantee of every such lock;
// - a gRPC operation: everything before its start happens before the thread that gets its tag;
// - the start of a server: everything before it happens before any of its calls;
// - the end of a server: it waits until its calls have ended and been released;
// - the end of a server's callback call, whose counters are decremented in the library as well;
// - a slice over borrowed memory: everything before its creation happens before its release;
// - a message: everything before it is sent happens before it is read, which an in-process channel
//   does in the sender's own slices.
//
// The file is linked into all programs of the tsan preset, and is itself compiled without
// instrumentation. It is bound to the symbols of Abseil 20220623 and gRPC 1.51. With other versions
// it does not link, or stops at the first function that it cannot find. tests/tsan proves that a
// real race in a handler is still found.
#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>
#include <dlfcn.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpcpp/impl/codegen/interceptor_common.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

// The sanitizer's own, without a header.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
// In most tests some threads of gRPC outlive main. Such a process ends 100 ms after main, so that
// races of those threads are still found. The default of one second took a third of the time of all
// tests together.
const char* __tsan_default_options() {
  return "ignore_noninstrumented_modules=1:atexit_sleep_ms=100";
}
// gRPC joins the threads of its completion queue in its own time, which may be after main's end.
// The handler of messages without a type is compiled into the library, where the counter that makes
// its destructor come last is not seen.
const char* __tsan_default_suppressions() {
  return "thread:grpc_core::Thread::Thread\n"
         "race:CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer>::"
         "ServerCallbackReaderWriterImpl::~ServerCallbackReaderWriterImpl\n";
}
}

namespace {

// A linker symbol as a template argument.
template <size_t N>
struct Symbol {
  consteval Symbol(const char (&name)[N]) {
    for (size_t i = 0; i < N; ++i) text[i] = name[i];
  }
  char text[N] = {};
};

// Calls the definition of `symbol` that the one in this file hides. A member function takes its
// object first.
template <Symbol symbol, typename Result, typename... Args>
Result Original(Args... args) {
  using Function = Result (*)(Args...);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol.text));
  if (original == nullptr) {
    std::fprintf(stderr, "tsan_grpc.cc: no shared library defines %s\n", symbol.text);
    std::abort();
  }
  return original(args...);
}

// Declares the edges of a call that releases `lock` while it waits, and holds it again afterwards.
class Relock {
 public:
  explicit Relock(void* lock) : lock_(lock) { __tsan_release(lock_); }
  ~Relock() { __tsan_acquire(lock_); }

 private:
  void* const lock_;
};

// Declares that a call returns with `object` acquired.
class AcquireAtEnd {
 public:
  explicit AcquireAtEnd(const void* object) : object_(const_cast<void*>(object)) {}
  ~AcquireAtEnd() { __tsan_acquire(object_); }

 private:
  void* const object_;
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  AcquireAtEnd acquire(this);
  Original<"_ZN4absl7debian35Mutex4LockEv", void>(this);
}

void Mutex::ReaderLock() {
  AcquireAtEnd acquire(this);
  Original<"_ZN4absl7debian35Mutex10ReaderLockEv", void>(this);
}

bool Mutex::TryLock() {
  const bool locked = Original<"_ZN4absl7debian35Mutex7TryLockEv", bool>(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

bool Mutex::ReaderTryLock() {
  const bool locked = Original<"_ZN4absl7debian35Mutex13ReaderTryLockEv", bool>(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  __tsan_release(this);
  Original<"_ZN4absl7debian35Mutex6UnlockEv", void>(this);
}

void Mutex::ReaderUnlock() {
  __tsan_release(this);
  Original<"_ZN4absl7debian35Mutex12ReaderUnlockEv", void>(this);
}

void Mutex::LockWhen(const Condition& condition) {
  AcquireAtEnd acquire(this);
  Original<"_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE", void>(this, &condition);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  AcquireAtEnd acquire(this);
  return Original<"_ZN4absl7debian35Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE",
                  bool>(this, &condition, timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  AcquireAtEnd acquire(this);
  return Original<"_ZN4absl7debian35Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool>(
      this, &condition, deadline);
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  AcquireAtEnd acquire(this);
  Original<"_ZN4absl7debian35Mutex14ReaderLockWhenERKNS0_9ConditionE", void>(this, &condition);
}

void Mutex::Await(const Condition& condition) {
  Relock relock(this);
  Original<"_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE", void>(this, &condition);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  Relock relock(this);
  return Original<"_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE", bool>(
      this, &condition, timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  Relock relock(this);
  return Original<"_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE", bool>(
      this, &condition, deadline);
}

// The unlocking thread evaluates the conditions of waiting threads: under the lock, but after
// Unlock above has declared its release.
bool Condition::Eval() const {
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  const bool met = Original<"_ZNK4absl7debian39Condition4EvalEv", bool>(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return met;
}

void CondVar::Wait(Mutex* mutex) {
  Relock relock(mutex);
  Original<"_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE", void>(this, mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  Relock relock(mutex);
  return Original<"_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE", bool>(
      this, mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  Relock relock(mutex);
  return Original<"_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE", bool>(
      this, mutex, deadline);
}

// Declares a release of the flag itself too: HasBeenNotified is inline, and only acquires the flag.
void Notification::Notify() {
  __tsan_release(this);
  __tsan_release(&notified_yet_);
  Original<"_ZN4absl7debian312Notification6NotifyEv", void>(this);
}

void Notification::WaitForNotification() const {
  AcquireAtEnd acquire(this);
  Original<"_ZNK4absl7debian312Notification19WaitForNotificationEv", void>(this);
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  AcquireAtEnd acquire(this);
  return Original<"_ZNK4absl7debian312Notification30WaitForNotificationWithTimeoutENS0_8DurationE",
                  bool>(this, timeout);
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  AcquireAtEnd acquire(this);
  return Original<"_ZNK4absl7debian312Notification31WaitForNotificationWithDeadlineENS0_4TimeE",
                  bool>(this, deadline);
}

bool BlockingCounter::DecrementCount() {
  Relock relock(this);
  return Original<"_ZN4absl7debian315BlockingCounter14DecrementCountEv", bool>(this);
}

void BlockingCounter::Wait() {
  AcquireAtEnd acquire(this);
  Original<"_ZN4absl7debian315BlockingCounter4WaitEv", void>(this);
}

ABSL_NAMESPACE_END
}  // namespace absl

namespace {

using RunFunctor = void (*)(grpc_completion_queue_functor*, int);

// The two functions of gRPC's headers that a callback operation's tag runs when it is done.
RunFunctor RunSuccessTag() {
  static const auto run = reinterpret_cast<RunFunctor>(dlsym(
      RTLD_DEFAULT,
      "_ZN4grpc8internal22CallbackWithSuccessTag9StaticRunEP29grpc_completion_queue_functori"));
  return run;
}

RunFunctor RunStatusTag() {
  static const auto run = reinterpret_cast<RunFunctor>(dlsym(
      RTLD_DEFAULT,
      "_ZN4grpc8internal21CallbackWithStatusTag9StaticRunEP29grpc_completion_queue_functori"));
  return run;
}

// Releases the slices of the messages that a batch sends.
void ReleaseMessages(const grpc_op* ops, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (ops[i].op != GRPC_OP_SEND_MESSAGE) continue;
    const grpc_byte_buffer* const message = ops[i].data.send_message.send_message;
    if (message == nullptr || message->type != GRPC_BB_RAW) continue;
    const grpc_slice_buffer& slices = message->data.raw.slice_buffer;
    for (size_t k = 0; k < slices.count; ++k)
      __tsan_release(GRPC_SLICE_START_PTR(slices.slices[k]));
  }
}

template <RunFunctor (*original)()>
void AcquireAndRun(grpc_completion_queue_functor* tag, int ok) {
  __tsan_acquire(tag);
  original()(tag, ok);
}

// Lets a callback tag acquire the release of its operation. Ignores other kinds of tags: they are
// objects whose first word is a pointer, as in a functor, and compare unequal.
void AcquireWhenRun(void* tag) {
  auto* functor = static_cast<grpc_completion_queue_functor*>(tag);
  if (functor == nullptr || functor->functor_run == nullptr) return;
  if (functor->functor_run == RunSuccessTag()) {
    functor->functor_run = AcquireAndRun<RunSuccessTag>;
  } else if (functor->functor_run == RunStatusTag()) {
    functor->functor_run = AcquireAndRun<RunStatusTag>;
  }
}

}  // namespace

namespace {

char call_has_ended;
std::atomic<void*> tag_of_server_end = nullptr;  // the last one

// A slice's release function and argument, wrapped in one that acquires its maker's release.
struct BorrowedSlice {
  void (*release)(void*);
  void* argument;

  static void Release(void* self) {
    __tsan_acquire(self);
    auto* slice = static_cast<BorrowedSlice*>(self);
    slice->release(slice->argument);
    delete slice;
  }
};

}  // namespace

extern "C" {

grpc_slice grpc_slice_new_with_user_data(void* bytes, size_t size, void (*release)(void*),
                                         void* argument) {
  auto* slice = new BorrowedSlice{release, argument};
  __tsan_release(slice);
  return Original<"grpc_slice_new_with_user_data", grpc_slice>(bytes, size, &BorrowedSlice::Release,
                                                               static_cast<void*>(slice));
}

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t nops, void* tag,
                                      void* reserved) {
  AcquireWhenRun(tag);
  ReleaseMessages(ops, nops);
  __tsan_release(tag);
  __tsan_release(call);
  return Original<"grpc_call_start_batch", grpc_call_error>(call, ops, nops, tag, reserved);
}

int grpc_byte_buffer_reader_next(grpc_byte_buffer_reader* reader, grpc_slice* slice) {
  const int has_next = Original<"grpc_byte_buffer_reader_next", int>(reader, slice);
  if (has_next != 0) __tsan_acquire(GRPC_SLICE_START_PTR(*slice));
  return has_next;
}

int grpc_byte_buffer_reader_peek(grpc_byte_buffer_reader* reader, grpc_slice** slice) {
  const int has_next = Original<"grpc_byte_buffer_reader_peek", int>(reader, slice);
  if (has_next != 0) __tsan_acquire(GRPC_SLICE_START_PTR(**slice));
  return has_next;
}

grpc_call_error grpc_server_request_call(grpc_server* server, grpc_call** call,
                                         grpc_call_details* details, grpc_metadata_array* metadata,
                                         grpc_completion_queue* queue_of_call,
                                         grpc_completion_queue* queue_of_tag, void* tag) {
  __tsan_release(tag);
  return Original<"grpc_server_request_call", grpc_call_error>(server, call, details, metadata,
                                                               queue_of_call, queue_of_tag, tag);
}

grpc_call_error grpc_server_request_registered_call(
    grpc_server* server, void* method, grpc_call** call, gpr_timespec* deadline,
    grpc_metadata_array* metadata, grpc_byte_buffer** payload, grpc_completion_queue* queue_of_call,
    grpc_completion_queue* queue_of_tag, void* tag) {
  __tsan_release(tag);
  return Original<"grpc_server_request_registered_call", grpc_call_error>(
      server, method, call, deadline, metadata, payload, queue_of_call, queue_of_tag, tag);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* queue, gpr_timespec deadline,
                                      void* reserved) {
  const auto event = Original<"grpc_completion_queue_next", grpc_event>(queue, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) {
    __tsan_acquire(event.tag);
    if (event.tag == tag_of_server_end) __tsan_acquire(&call_has_ended);
  }
  return event;
}

// A call of the callback interface is released after its OnDone. A server's end is signalled when
// no call of it is referenced any more.
void grpc_call_unref(grpc_call* call) {
  __tsan_release(&call_has_ended);
  Original<"grpc_call_unref", void>(call);
}

void grpc_server_shutdown_and_notify(grpc_server* server, grpc_completion_queue* queue, void* tag) {
  tag_of_server_end = tag;
  __tsan_release(tag);
  Original<"grpc_server_shutdown_and_notify", void>(server, queue, tag);
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* queue, void* tag,
                                       gpr_timespec deadline, void* reserved) {
  const auto event =
      Original<"grpc_completion_queue_pluck", grpc_event>(queue, tag, deadline, reserved);
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

}  // extern "C"

namespace grpc::internal {

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  __tsan_acquire(&callbacks_outstanding_);
  __tsan_acquire(&on_cancel_conditions_remaining_);
  Original<"_ZN4grpc8internal18ServerCallbackCall14ScheduleOnDoneEb", void>(this, inline_ondone);
}

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  __tsan_acquire(&callbacks_outstanding_);
  __tsan_acquire(&on_cancel_conditions_remaining_);
  Original<"_ZN4grpc8internal18ServerCallbackCall12CallOnCancelEPNS0_13ServerReactorE", void>(
      this, reactor);
}

}  // namespace grpc::internal

// The accepting thread makes the object that carries a call past its interceptors, and the running
// thread reads it. gRPC's server hands it over inside the library, which the sanitizer does not
// see. The library makes the object, where the sanitizer does not see that either; the sanitizer
// sees all later uses.
extern "C" {

void MakeCompleteBatchMethods(void* place) asm(
    "_ZN4grpc8internal27InterceptorBatchMethodsImplC1Ev");
void MakeCompleteBatchMethods(void* place) {
  Original<"_ZN4grpc8internal27InterceptorBatchMethodsImplC1Ev", void>(place);
}

void MakeBaseBatchMethods(void* place) asm("_ZN4grpc8internal27InterceptorBatchMethodsImplC2Ev");
void MakeBaseBatchMethods(void* place) {
  Original<"_ZN4grpc8internal27InterceptorBatchMethodsImplC2Ev", void>(place);
}

}  // extern "C"

// A call may be the first that a thread of gRPC's has to do with a server, which another thread
// made and started: with its interceptors, which every call asks for.
namespace {

char server_is_started;

}  // namespace

extern "C" {

void grpc_server_start(grpc_server* server) {
  __tsan_release(&server_is_started);
  Original<"grpc_server_start", void>(server);
}

void* SetServerRpcInfo(void* context, const char* method, int type, const void* creators) asm(
    "_ZN4grpc17ServerContextBase19set_server_rpc_infoEPKcNS_8internal9RpcMethod7RpcTypeERKSt6vector"
    "ISt10unique_ptrINS_12experimental33ServerInterceptorFactoryInterfaceESt14default_deleteIS9_EE"
    "SaISC_EE");
void* SetServerRpcInfo(void* context, const char* method, int type, const void* creators) {
  __tsan_acquire(&server_is_started);
  return Original<
      "_ZN4grpc17ServerContextBase19set_server_rpc_infoEPKcNS_8internal9RpcMethod7RpcTypeERKSt6vect"
      "orISt10unique_ptrINS_12experimental33ServerInterceptorFactoryInterfaceESt14default_deleteIS9"
      "_EESaISC_EE",
      void*>(context, method, type, creators);
}

}  // extern "C"
